"""Benchmarks: `python -m jaxcl.bench`, and the check that runs on a GPU, `python -m jaxcl.bench.gpu_check`."""
