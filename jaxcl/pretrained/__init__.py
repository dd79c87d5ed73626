"""Published weights as the start of a run, under the names of Hugging Face and timm."""

from jaxcl.pretrained.files import open_arrays
from jaxcl.pretrained.find import TOWERS, find_weights, random_parts, whole_paths

__all__ = ["TOWERS", "find_weights", "open_arrays", "random_parts", "whole_paths"]
