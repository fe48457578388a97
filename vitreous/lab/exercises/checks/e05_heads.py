"""Checks of exercise 5."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from vitreous.lab.exercises.checking import Answer, CheckFailed, is_close, reject_mistakes, require_close, require_shape
from vitreous.layers.attention import Attend, SelfAttention
from vitreous.layers.mixer import MixerContext

SPLIT, JOIN = "b n (three h k) -> three b h n k", "b h n k -> b n (h k)"


def check_shape(self_attention: Answer) -> None:
    """The shape is (b, n, d)."""
    layer = make_layer(8, 2)
    mistakes = {
        (2, 2, 5, 4): "the heads are still a separate axis: concatenate them again",
        (2, 5, 4): "only one head's channels are returned, or the heads were summed: concatenate them",
        (5, 8): "the batch axis is missing",
    }
    require_shape(self_attention(torch.randn(2, 5, 8), layer.qkv, layer.proj, 2), (2, 5, 8), "(b, n, d)", mistakes)


def check_example(self_attention: Answer) -> None:
    """The example of the task is reproduced."""
    x = torch.tensor([[[1.0, 2, 3, 4], [3, 4, 5, 6]]])
    found = self_attention(x, lambda x: torch.cat([0 * x, x, x], dim=-1), lambda x: x, 2)
    mistakes = (
        (x, "the output is x itself, not the mean of its tokens: each token attended only to itself"),
        (
            over_heads(x),
            "the mean was taken over another axis than tokens: move the heads before the tokens, (b, h, n, k), so "
            "that the last two axes are tokens and channels",
        ),
    )
    require_close(found, x.mean(dim=1, keepdim=True).expand(1, 2, 4), "the example is not reproduced", mistakes)


def check_scale(self_attention: Answer) -> None:
    """The logits are divided by √k of a head, not by √d of all channels."""
    x, layer = torch.randn(2, 5, 16), make_layer(16, 4)
    mistakes = (
        (
            attend(x, layer, scale=1 / 4),
            "divided by √d, the width of all heads together: a head has only k = d/h channels, so divide by √k",
        ),
        (attend(x, layer, scale=1.0), "the logits are not divided by √k"),
    )
    reject_mistakes(output_of(self_attention, x, layer), mistakes)


def check_thirds(self_attention: Answer) -> None:
    """Queries, keys and values are the thirds of qkv(x), in this order."""
    x, layer = torch.randn(2, 5, 16), make_layer(16, 4)
    mistakes = (
        (
            attend(x, layer, split="b n (h three k) -> three b h n k"),
            "qkv(x) was split into heads first, and each head into q, k, v: first come all queries, then all keys, "
            "then all values; the axis of three comes before that of heads",
        ),
        (
            attend(x, layer, split="b n (h k three) -> three b h n k"),
            "q, k and v are interleaved: they are thirds of qkv(x), qkv(x).chunk(3, dim=-1)",
        ),
        (attend(x, layer, order=(0, 2, 1)), "keys and values are swapped"),
        (attend(x, layer, order=(1, 0, 2)), "queries and keys are swapped"),
    )
    reject_mistakes(output_of(self_attention, x, layer), mistakes)


def check_heads(self_attention: Answer) -> None:
    """A head takes contiguous channels."""
    x, layer = torch.randn(2, 5, 16), make_layer(16, 4)
    mistakes = (
        (
            attend(x, layer, split="b n (three k h) -> three b h n k", join="b h n k -> b n (k h)"),
            "head i takes every h-th channel: reshape to (heads, k), not to (k, heads)",
        ),
        (
            attend(x, layer, split="b n (three k h) -> three b h n k"),
            "head i takes every h-th channel: reshape to (heads, k), not to (k, heads)",
        ),
        (attend(x, layer, num_heads=1), "there is one head only, over all channels: num_heads is not used"),
        (
            attend(x, layer, split="b n (three d) -> three b n d", cut=True),
            "the (n, d) values of an image were cut into h pieces in memory order, which gives a head whole "
            "tokens: reshape to (b, n, h, k), then transpose",
        ),
        (
            attend(x, layer, split="b n (three d) -> three b n d", cut=True, flat=True),
            "the (n, d) values of an image were cut into h pieces in memory order, and merged in the "
            "same way: reshape to (b, n, h, k), then transpose, and back",
        ),
    )
    reject_mistakes(output_of(self_attention, x, layer), mistakes)


def check_concatenation(self_attention: Answer) -> None:
    """Heads are concatenated again for each token, and passed through proj."""
    x, layer = torch.randn(2, 5, 16), make_layer(16, 4)
    bare = SelfAttention(MixerContext(dim=16, num_heads=4, grid=(1, 5)))
    bare.qkv, bare.proj = layer.qkv, nn.Linear(16, 16)
    nn.init.eye_(bare.proj.weight)
    nn.init.zeros_(bare.proj.bias)
    mistakes = (
        (
            attend(x, layer, flat=True),
            "the heads were flattened before the tokens were moved in front of them: (b, h, n, k) → (b, n, h, k) "
            "first, then (b, n, h·k); otherwise tokens mix",
        ),
        (
            attend(x, layer, join="b h n k -> b n (k h)"),
            "the channels of the heads are interleaved: flatten (h, k), not (k, h)",
        ),
        (attend(x, bare), "proj is missing: it is the last step"),
    )
    reject_mistakes(output_of(self_attention, x, layer), mistakes)


def check_images_independent(self_attention: Answer) -> None:
    """An image's output does not depend on the others in its batch."""
    x, layer = torch.randn(3, 5, 16), make_layer(16, 4)
    together = self_attention(x, layer.qkv, layer.proj, 4)
    alone = self_attention(x[:1], layer.qkv, layer.proj, 4)
    if not is_close(together[:1], alone):
        raise CheckFailed(
            "an image's output changes with its batch: the attention runs across images; tokens are axis 1"
        )


def check_library(self_attention: Answer) -> None:
    """The values equal the library's, for any number of heads."""
    for num_heads in (1, 3, 12):
        x, layer = torch.randn(2, 7, 12), make_layer(12, num_heads)
        found = self_attention(x, layer.qkv, layer.proj, num_heads)
        require_close(found, layer(x, None), f"with {num_heads} heads the values differ")


def output_of(self_attention: Answer, x: Tensor, layer: SelfAttention) -> Tensor:
    return self_attention(x, layer.qkv, layer.proj, layer.num_heads)


def attend(
    x: Tensor,
    layer: SelfAttention,
    *,
    num_heads: int | None = None,
    split: str = SPLIT,
    order: tuple[int, int, int] = (0, 1, 2),
    scale: float | None = None,
    cut: bool = False,
    join: str = JOIN,
    flat: bool = False,
) -> Tensor:
    """Self-attention with one step done differently, to reproduce common mistakes."""
    h = num_heads or layer.num_heads
    sizes = {name: size for name, size in (("three", 3), ("h", h)) if name in split.replace("(", " ").split()}
    thirds = rearrange(layer.qkv(x), split, **sizes)
    if cut:
        thirds = thirds.reshape(3, len(x), h, x.shape[1], -1)
    q, k, v = (thirds[index] for index in order)
    own_scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = Attend(scaled=False)(q * own_scale, k, v)
    return layer.proj(out.reshape(x.shape) if flat else rearrange(out, join))


def over_heads(x: Tensor) -> Tensor:
    """Result of zero queries if heads attend to heads, separately for each token."""
    heads = x.unflatten(-1, (2, 2))
    return heads.mean(dim=-2, keepdim=True).expand_as(heads).flatten(-2)


def make_layer(dim: int, num_heads: int) -> SelfAttention:
    """Build a layer whose logits are large enough for mistakes to show."""
    layer = SelfAttention(MixerContext(dim=dim, num_heads=num_heads, grid=(1, 5))).requires_grad_(False)
    layer.qkv.weight.mul_(3)
    return layer
