"""A formula for the cost of training, presented as an optimal allocation: it undercounts and allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import exactly
from vitreous.lab.instruments.counting import training_flops
from vitreous.lab.prediction import near
from vitreous.lab.trial import Trial
from vitreous.models.vit import ViTConfig

CLAIM = Claim(
    title="The cost of training",
    statement="The best allocation between model size and training data follows from C = 6NLd² + 12Ld²n, with N "
    "training tokens, L layers of width d and n tokens in an image.",
    sources=(Source.FOUNDATIONS,),
    formula=r"C = 6 N L d^2 + 12 L d^2 n",
    right="A block has 12d² weights and not d², every token is compared with n others, and each "
    "multiply-accumulate is two operations, done once forward and twice backward: six. It is a cost and not an "
    "allocation: the best allocation requires runs at equal cost, which are not made here.",
    right_formula=r"C = 6 N L \, (12 d^2 + 2 n d)",
    meaning="With the text's formula a budget comes out at least twelve times too small. Six operations per "
    "parameter and training token is the rule of thumb; add 12·n·L·d per token once images have more than d tokens.",
    axes=Axes("tokens n in an image", "operations per token and layer, in d²", log="xy"),
)

IMAGES, LAYERS = 1000, 2


def document(images: int, layers: int, n: int, d: int) -> float:
    return 6 * (images * n) * layers * d**2 + 12 * layers * d**2 * n


def right(images: int, layers: int, n: int, d: int) -> float:
    return 6 * (images * n) * layers * (12 * d**2 + 2 * n * d)


def measure(side: int, d: int) -> int:
    """FLOPs of the blocks, forward and backward, as counted by torch, with explicit attention.

    Fused attention recomputes its logits in the backward pass: a sixth more of the part with n.
    """
    with torch.device("meta"):
        config = ViTConfig(dim=d, num_heads=d // 64, depth=LAYERS, class_token=False, pool="mean", position="none")
        blocks = config.build().blocks
        tokens = torch.empty(IMAGES, side**2, d, requires_grad=True)

    def forward() -> torch.Tensor:
        x = tokens
        for block in blocks:
            x = block(x, (side, side))
        return x

    return training_flops(forward)


def cases(trial: Trial) -> Iterator[Case]:
    for d in (192, 768):
        for side in trial.choose(quick=(14, 64), full=(7, 14, 24, 32, 64)):
            setting = (IMAGES, LAYERS, side**2, d)
            unit = IMAGES * side**2 * LAYERS * d**2
            yield Case(
                f"d = {d}, n = {side**2:,}",
                exactly(measure(side, d) / unit),
                document=near(document(*setting) / unit, share=0.1),
                right=near(right(*setting) / unit, share=0.001),
                at=side**2,
                group=f"d = {d}",
            )
