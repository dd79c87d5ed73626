"""Vision transformers Ti, S and B without the classifier (Dosovitskiy et al. 2020; Touvron et al. 2020).

Papers: https://arxiv.org/abs/2010.11929 and, for Ti and S, https://arxiv.org/abs/2012.12877. The layers run in one
`nn.scan`: compile time does not grow with the depth, and recomputing truly lowers memory, which on the CPU of jax 0.10
it does only inside a scan.

What a layer stores for its backward pass is chosen by name, even where no product is computed again. Left to itself,
autodiff stores for each norm three arrays of tokens in float32 and its result, for GELU four as wide as the MLP, and of
attention the probabilities twice: for a ViT-B/32 in bfloat16 and 2048 images of 224 pixels 64 GiB. All of it but the
results of products follows from them by norms, GELU and sums, which cost next to nothing: these alone are 19 GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Float32

from jaxcl.config import check_divides
from jaxcl.lora import LOW_RANK
from jaxcl.models.attention import PROBABILITIES, attend
from jaxcl.models.flavours import FLAVOURS, activation_of

# Names of what a layer computes, as PROBABILITIES are one: the results of its four layers, and of attention.
PRODUCT, MIXED = "product", "mixed"
# Of a layer's result nothing is stored that its gradient does not need: so not the last product of a plain layer.
POLICIES = {
    "none": jax.checkpoint_policies.save_only_these_names(PRODUCT, LOW_RANK, PROBABILITIES, MIXED),
    "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT, LOW_RANK),
    "blocks": None,
}

# Standard deviation 0.02; cutting a normal at two deviations takes 12 % of its spread, given back here.
TRUNCATED = nn.initializers.truncated_normal(0.02 / 0.87962566)


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)); post-norm: norm(x + attention(x)), norm(x + mlp(x)).

    Attributes:
        heads: attention heads; must divide the width.
        dtype: compute dtype; norms and the softmax are float32 inside.
        flavour: one of `FLAVOURS`.
    """

    heads: int
    dtype: Any
    flavour: str = "plain"

    @nn.compact
    def __call__(
        self, x: Float[Array, "n t d"], mask: Bool[Array, "n 1 #t t"] | None = None
    ) -> tuple[Float[Array, "n t d"], None]:
        """Return the tokens after this layer, and None for `nn.scan` to stack; False in `mask`: looked at by none."""
        width, flavour = x.shape[-1], FLAVOURS[self.flavour]

        def dense(features: int, name: str) -> Callable[[Array], Array]:
            layer = nn.Dense(features, dtype=self.dtype, kernel_init=TRUNCATED, name=name)
            return lambda x: checkpoint_name(layer(x), PRODUCT)

        norm = partial(nn.LayerNorm, epsilon=flavour.epsilon, dtype=self.dtype)

        def before(x: Array, name: str) -> Array:
            return x if flavour.post_norm else norm(name=name)(x)

        def added(x: Array, change: Array, number: int) -> Array:
            if flavour.layer_scale:
                change = change * self.param(f"scale{number}", nn.initializers.ones, (width,)).astype(change.dtype)
            return norm(name=f"norm{number}")(x + change) if flavour.post_norm else x + change

        qkv = dense(3 * width, name="qkv")(before(x, "norm1"))
        query, key, value = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, self.heads, width // self.heads), 2, 0)
        mixed = checkpoint_name(attend(query, key, value, mask).reshape(x.shape), MIXED)
        x = added(x, dense(width, name="project")(mixed), 1)
        hidden = activation_of(flavour)(dense(4 * width, name="mlp1")(before(x, "norm2")))
        return added(x, dense(width, name="mlp2")(hidden), 2), None


class ViT(nn.Module):
    """Images to features [n, width], or [n, 2 · width]: class token, mean of the patches or both, after the final norm.

    Attributes:
        width: of a token.
        heads: attention heads.
        depth: layers.
        patch: pixels a patch side; must divide height and width of the images.
        pool: "cls", "mean" or "cls_mean".
        remat: what the backward pass computes again, beside norms, activations and sums. "none": no product; "dots":
            attention, from queries, keys and values; "blocks": each layer, from its tokens.
        dtype: compute dtype; parameters and features are float32.
        flavour: one of `FLAVOURS`.
    """

    width: int
    heads: int
    depth: int = 12
    patch: int = 16
    pool: str = "cls"
    remat: str = "none"
    dtype: Any = jnp.float32
    flavour: str = "plain"

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool = False) -> Float32[Array, "n f"]:
        """Encode normalised images; no layer depends on `train`.

        Raises:
            ConfigError: if `patch` does not divide the image size.
        """
        flavour = FLAVOURS[self.flavour]
        project = nn.Dense(self.width, use_bias=flavour.patch_bias, dtype=self.dtype, name="patches")
        tokens = project(split_patches(x, self.patch))
        if self.pool != "mean":
            cls = self.param("cls", nn.initializers.zeros, (1, 1, self.width))
            cls = jnp.broadcast_to(cls.astype(tokens.dtype), (x.shape[0], 1, self.width))
            tokens = jnp.concatenate([cls, tokens], axis=1)
        position = self.param("position", TRUNCATED, (1, *tokens.shape[1:]))
        tokens = tokens + position.astype(tokens.dtype)
        if flavour.norm_in:
            tokens = nn.LayerNorm(epsilon=flavour.epsilon, dtype=self.dtype, name="norm_in")(tokens)
        layers = stack_of(self.depth, remat=self.remat)(self.heads, self.dtype, self.flavour, name="layers")
        tokens, _ = layers(tokens, None)
        norm = nn.LayerNorm(epsilon=flavour.epsilon, name="norm")
        if self.pool == "cls":
            return norm(tokens[:, 0].astype(jnp.float32))
        tokens = norm(tokens.astype(jnp.float32))
        if self.pool == "mean":
            return jnp.mean(tokens, axis=1)
        return jnp.concatenate([tokens[:, 0], jnp.mean(tokens[:, 1:], axis=1)], axis=1)


ViTTi = partial(ViT, 192, 3)
ViTS = partial(ViT, 384, 6)
ViTB = partial(ViT, 768, 12)


def stack_of(depth: int, *, remat: str) -> Callable[..., nn.Module]:
    """`depth` blocks as one `nn.scan`, all of which see one mask.

    Args:
        depth: layers.
        remat: as of `ViT`.

    Returns:
        A function of the attributes of `Block` to a module, called with tokens and mask.
    """
    # Inside a scan the loop itself keeps XLA from merging the recomputation, so the costly barrier is not needed.
    block = nn.remat(Block, prevent_cse=False, policy=POLICIES[remat])
    return nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=nn.broadcast, length=depth)


def split_patches(images: Float[Array, "n h w c"], patch: int) -> Float[Array, "n t f"]:
    """Cut images into flat square patches, row by row.

    Args:
        images: [n, h, w, c] of any float dtype.
        patch: pixels a side.

    Returns:
        Patches [n, (h / patch) * (w / patch), patch * patch * c].

    Raises:
        ConfigError: if `patch` does not divide the height and width.

    >>> split_patches(jnp.zeros((2, 8, 12, 3)), 4).shape
    (2, 6, 48)
    """
    n, h, w, c = images.shape
    for pixels in (h, w):
        check_divides("data.image_size", pixels, "model.patch", patch, vary="data.image_size")
    grid = images.reshape(n, h // patch, patch, w // patch, patch, c)
    return grid.swapaxes(2, 3).reshape(n, -1, patch * patch * c)
