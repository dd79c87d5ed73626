"""Eight virtual CPU devices for every test, and shapes and dtypes of annotations checked as the code runs."""

import atexit
import os
import shutil
import tempfile

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Many tests compile the same program: each is compiled once a session, in this process and in those it starts
_CACHE = tempfile.mkdtemp(prefix="jaxcl-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

from jaxtyping import install_import_hook

install_import_hook("jaxcl", "checker.check")
