"""Eight virtual CPU devices for every test, and shapes and dtypes of annotations checked as the code runs."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import flags
from jaxtyping import install_import_hook

flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags
install_import_hook("jaxcl", "checker.check")
