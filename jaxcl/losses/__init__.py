"""Contrastive losses on arrays: one InfoNCE, dense to read and streamed to train with.

    loss_i = −(1/|P|) Σ_{p∈P} [ s_ip − log( Σ_{q∈P} e^{s_iq} + Σ_{n∈T} e^{s_in} ) ],   s = cos / temperature

Groups say what belongs together, T are the `top_k` most similar negatives (or all of them). The one formula is NT-Xent,
MoCo, SupCon and each half of CLIP. Needs jax and numpy, nothing else of this package.
"""

from jaxcl.losses.infonce import infonce
from jaxcl.losses.outputs import InfoNCEOutput, Stats
from jaxcl.losses.sharded import mean_infonce
from jaxcl.losses.streaming import streaming_infonce

__all__ = ["InfoNCEOutput", "Stats", "infonce", "mean_infonce", "streaming_infonce"]
