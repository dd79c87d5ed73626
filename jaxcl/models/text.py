"""A transformer over the tokens of a caption, the text tower of CLIP (Radford et al. 2021).

Paper: https://arxiv.org/abs/2103.00020. Unlike there, every token sees all others, and the feature is the mean over
them: a caption is read whole, so nothing needs the causal mask that makes the last token special, and with the mean
each token has a gradient of its own from the first step, which counts where captions are few. The tower of the paper
is the flavour `clip_text`, that of BERT (Devlin et al. 2018, https://arxiv.org/abs/1810.04805) `bert`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int

from jaxcl.config import ConfigError
from jaxcl.models.flavours import FLAVOURS
from jaxcl.models.vit import TRUNCATED, stack_of

PAD, END = 0, 2


class TextTower(nn.Module):
    """Tokens to features [n, width]: the mean over all but padding, or the end token, after the final norm.

    Attributes:
        vocab: different tokens; 0 is padding, 2 the end.
        length: most tokens of a caption.
        width: of a token.
        depth: layers.
        heads: attention heads; must divide the width.
        remat: as of `ViT`.
        dtype: compute dtype; parameters and features are float32.
        flavour: one of `FLAVOURS`.
    """

    vocab: int
    length: int
    width: int
    depth: int
    heads: int
    remat: str = "none"
    dtype: Any = jnp.float32
    flavour: str = "plain"

    @nn.compact
    def __call__(self, tokens: Int[Array, "n t"], train: bool = False) -> Float32[Array, "n f"]:
        """Encode captions; no layer depends on `train`, and no feature on padding.

        Raises:
            ConfigError: more tokens than `length`.

        >>> import jax
        >>> tower = TextTower(vocab=9, length=5, width=8, depth=1, heads=2)
        >>> tower.init_with_output(jax.random.key(0), jnp.array([[1, 5, 2, 0, 0]]))[0].shape
        (1, 8)
        """
        if tokens.shape[1] > self.length:
            raise ConfigError(f"text.length = {self.length} is less than the {tokens.shape[1]} tokens of a caption")
        flavour, real = FLAVOURS[self.flavour], tokens != PAD
        position = self.param("position", TRUNCATED, (1, self.length, self.width))[:, : tokens.shape[1]]
        x = nn.Embed(self.vocab, self.width, dtype=self.dtype, embedding_init=TRUNCATED, name="tokens")(tokens)
        x = x + position.astype(x.dtype)
        if flavour.norm_in:
            x = nn.LayerNorm(epsilon=flavour.epsilon, dtype=self.dtype, name="norm_in")(x)
        mask = real[:, None, None, :]
        if flavour.causal:
            mask = mask & jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        x, _ = stack_of(self.depth, remat=self.remat)(self.heads, self.dtype, self.flavour, name="layers")(x, mask)
        x = x.astype(jnp.float32)
        if not flavour.post_norm:
            x = nn.LayerNorm(epsilon=flavour.epsilon, name="norm")(x)
        if flavour.causal:
            return jnp.take_along_axis(x, jnp.argmax(tokens == END, axis=1)[:, None, None], axis=1)[:, 0]
        weight = real / jnp.maximum(jnp.sum(real, axis=1, keepdims=True), 1)
        return jnp.sum(x * weight[..., None], axis=1)
