"""Eight virtual CPU devices for every test, and shapes and dtypes of annotations checked as the code runs."""

import atexit
import gc
import os
import shutil
import tempfile

from compile_options import UNDIVIDED, UNOPTIMISED, WITHOUT_EMITTERS

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "PYTEST_XDIST_WORKER" not in os.environ:  # which has what this process sets
    devices = "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = " ".join(
        [os.environ.get("XLA_FLAGS", ""), devices, *WITHOUT_EMITTERS, *UNDIVIDED, *UNOPTIMISED]
    )
    # Many tests compile the same program: each is compiled once a session, in this process and in those it starts
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jaxcl-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # each operation would carry ten lines of Python to XLA
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

from jaxtyping import install_import_hook

install_import_hook("jaxcl", "checker.check")
# a trace makes many objects that live: by default they are looked through again and again
gc.set_threshold(100_000, 50, 100)
