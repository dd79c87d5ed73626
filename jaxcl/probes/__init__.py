"""Probes of frozen features: kNN, linear probe, view retrieval; arrays in, scores out."""

from jaxcl.probes.evaluate import Scores, majority_share, probe
from jaxcl.probes.features import extract

__all__ = ["Scores", "extract", "majority_share", "probe"]
