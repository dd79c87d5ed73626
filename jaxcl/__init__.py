"""jaxcl: contrastive learning on GPUs with little memory, in JAX and Flax."""

__version__ = "0.1.0"
