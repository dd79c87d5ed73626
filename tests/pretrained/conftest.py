"""The torch of the originals and JAX share few cores: more threads than one each only wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
