"""The dense loss as it is written in PyTorch, where PyTorch is installed (extra `torch`)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np

from jaxcl.bench.measure import Program
from jaxcl.bench.programs import Variant, arguments_of

MISSING = "PyTorch is not installed: pip install 'jaxcl[torch]'"


def is_installed() -> bool:
    """Whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def make_dense(variant: Variant) -> Program:
    """NT-Xent by one matrix product and one cross-entropy, on as many threads as JAX has cores.

    Args:
        variant: all negatives of one even-numbered float32 array, with the gradient.

    Returns:
        A program whose result is the loss.
    """
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    temperature, _, queries = arguments_of(variant)
    z = torch.tensor(np.asarray(queries), requires_grad=True)
    t = float(temperature)
    partner = torch.arange(variant.n) ^ 1

    def run() -> Any:
        z.grad = None
        unit = torch.nn.functional.normalize(z)
        scores = (unit @ unit.T / t).fill_diagonal_(-torch.inf)
        loss = torch.nn.functional.cross_entropy(scores, partner)
        loss.backward()
        return loss.item()

    return Program(run)
