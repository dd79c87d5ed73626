"""Contrastive losses on arrays: one InfoNCE, dense to read and streamed to train with.

    loss_i = −(1/|P|) Σ_{p∈P} [ s_ip − log( Σ_{q∈P} e^{s_iq} + Σ_{n∈T} e^{s_in} ) ],   s = cos / temperature

Groups say what belongs together, T are the `top_k` most similar negatives (or all of them). The one formula is NT-Xent,
MoCo, SupCon and each half of CLIP. Needs jax and numpy, nothing else of this package. In somebody's own loop:

    >>> import jax, optax
    >>> optimizer, params = optax.sgd(0.5), jax.random.normal(jax.random.key(0), (8, 4))
    >>> images, ids = jax.random.normal(jax.random.key(1), (6, 8)), jnp.array([0, 0, 1, 1, 2, 2])
    >>> def loss_fn(params):
    ...     z = images @ params
    ...     out = streaming_infonce(z, z, ids, ids, temperature=0.5, top_k=2, exclude_diagonal=True)
    ...     return out.loss.sum() / out.valid.sum()
    >>> loss_and_gradient = jax.jit(jax.value_and_grad(loss_fn))
    >>> before, gradient = loss_and_gradient(params)
    >>> updates, _ = optimizer.update(gradient, optimizer.init(params))
    >>> after, _ = loss_and_gradient(optax.apply_updates(params, updates))
    >>> bool(after < before)
    True
"""

from jaxcl.losses.infonce import infonce
from jaxcl.losses.normalise import normalise
from jaxcl.losses.outputs import InfoNCEOutput, Stats
from jaxcl.losses.pruning import expected_skip_rate
from jaxcl.losses.sharded import mean_infonce
from jaxcl.losses.similarity import SimilarityOutput, similarity_kl
from jaxcl.losses.streaming import streaming_infonce

__all__ = [
    "InfoNCEOutput",
    "SimilarityOutput",
    "Stats",
    "expected_skip_rate",
    "infonce",
    "mean_infonce",
    "normalise",
    "similarity_kl",
    "streaming_infonce",
]
