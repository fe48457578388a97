"""Cross-covariance attention compares channels within an image; with the axes confused, it compares images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import Estimate, exactly
from vitreous.lab.instruments.counting import forward_flops
from vitreous.lab.instruments.dependence import capture_inputs, effect_of_others, relative_change
from vitreous.lab.instruments.seeding import seeded
from vitreous.lab.prediction import AtLeast, Near, near
from vitreous.lab.trial import Trial
from vitreous.layers.covariance import CrossCovariance
from vitreous.layers.mixer import MixerContext

CLAIM = Claim(
    title="Cross-covariance attention",
    statement="XCiT lets channels look at channels instead of tokens at tokens, so that nothing grows with the square "
    "of the tokens: with q, k and v as channels × images × tokens, their product over the tokens goes through a "
    "softmax.",
    sources=(Source.MODERN,),
    formula=r"\mathrm{softmax}(q k^\top / \tau) \, v, \quad q, k, v \in R^{C \times B \times N}",
    right="The idea is right, but the rows of that product are images, not channels: images attend to images. "
    "Channels attend to channels with q and k as images × heads × channels × tokens, every channel first divided by "
    "its norm over the tokens.",
    right_formula=r"\mathrm{softmax}(\tau \, \hat{q} \, \hat{k}^\top) \, v, \quad q, k, v \in R^{B \times h \times "
    r"C/h \times N}",
    meaning="Matching shapes prove nothing: change one image of a batch and check that no other output changes. "
    "Without the normalization, logits grow with the number of tokens and the softmax saturates at higher resolutions.",
)
IMAGES, TOKENS, WIDTH, HEADS = 4, 64, 32, 2


def document(qkv: Tensor) -> Tensor:
    """The text's code, line by line, without its temperature (1)."""
    q, k, v = (part.permute(2, 0, 1) for part in qkv.chunk(3, dim=-1))
    attention = (q @ k.transpose(-1, -2)).softmax(-1)
    return (attention @ v).permute(1, 2, 0)


def normalized(layer: CrossCovariance, batch: Tensor) -> tuple[Tensor, ...]:
    """q, k and v as the library's layer passes them to its softmax: normalized, channels before tokens."""
    inputs, _ = capture_inputs(layer.attend, lambda: layer(batch, None))
    return inputs


def unnormalized(layer: CrossCovariance, batch: Tensor) -> tuple[Tensor, ...]:
    return rearrange(layer.qkv(batch), "b n (three h k) -> three b h k n", three=3, h=HEADS).unbind()


def largest_logit(
    find: Callable[[CrossCovariance, Tensor], tuple[Tensor, ...]], layer: CrossCovariance, x: Tensor
) -> float:
    q, k, _ = find(layer, x)
    return float(layer.attend.logits(q, k).abs().max())


def growth(measure: Callable[[Tensor], float], batch: Tensor) -> Estimate:
    """Factor by which ``measure`` grows when every token is repeated four times."""
    return exactly(measure(batch.repeat(1, 4, 1)) / measure(batch))


@torch.no_grad()
def cases(trial: Trial) -> Iterator[Case]:
    with seeded(0):
        context = MixerContext(dim=WIDTH, num_heads=HEADS, grid=(1, TOKENS))
        layer, batch = CrossCovariance(context), torch.randn(IMAGES, TOKENS, WIDTH)
        text = effect_of_others(lambda x: document(layer.qkv(x)), batch)
        library = effect_of_others(lambda x: layer(x, None), batch)
    q, k, v = layer.qkv(batch).chunk(3, dim=-1)
    alone = relative_change(v[:1], document(torch.cat([q, k, v], dim=-1)[:1]))
    keys = layer.attend.weights(*normalized(layer, batch)[:2]).shape[-1]
    yield Case("the text's code: change of an image's output when others in its batch change", exactly(text),
               document=Near(0.0, 1e-3), right=AtLeast(0.05))  # fmt: skip
    yield Case("the library: change of an image's output when others in its batch change", exactly(library),
               right=Near(0.0, 1e-5))  # fmt: skip
    yield Case("the text's code: change of the values of an image in a batch of one", exactly(alone),
               document=AtLeast(0.01), right=Near(0.0, 1e-5))  # fmt: skip
    yield Case("the library: channels that a channel attends to, 32 in 2 heads", exactly(keys),
               right=Near(WIDTH / HEADS, 0.5))  # fmt: skip
    cost = growth(lambda x: forward_flops(layer.attend, *normalized(layer, x)), batch)
    yield Case("the library: cost of 4 × the tokens", cost,
               document=near(4.0, share=0.01), right=near(4.0, share=0.01))  # fmt: skip
    for name, find, expected in (("as they are", unnormalized, 4.0), ("divided by their lengths", normalized, 1.0)):
        logits = growth(partial(largest_logit, find, layer), batch)
        yield Case(f"largest logit of 4 × the tokens, channels {name}", logits, right=near(expected, share=0.01))
