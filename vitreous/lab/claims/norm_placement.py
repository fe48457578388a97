"""Where the norm stands: Post-LN keeps activations constant, Pre-LN lets them grow like a random walk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.figures import usual
from vitreous.lab.prediction import AtLeast, AtMost, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import Block, PostNormBlock, PreNormBlock
from vitreous.layers.init import init_vit
from vitreous.layers.mlp import Mlp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import Outcome

CLAIM = Claim(
    title="Norm before or after the branch",
    statement="With the norm after the addition (Post-LN) activations grow exponentially with the number of blocks, "
    "with the norm inside the branch (Pre-LN) arithmetically. That is why Post-LN is hard to train deep, and Pre-LN "
    "has the more stable gradients.",
    sources=(Source.PRINCIPLES, Source.DEEP_DIVE),
    formula=r"|x_L| \sim (1+g)^L |x_0| \; \mathrm{(Post)}, \quad |x_0| + L C \; \mathrm{(Pre)}",
    right="Post-LN's activations are constant, since each block ends with the norm. Pre-LN's grow like the square root of "
    "the depth, for branches with random weights point in unrelated directions. Post-LN's trouble is another: the "
    "gradients of its last blocks do not shrink with depth, and its tokens become alike sooner.",
    right_formula=r"|x_L| = 1 \; \mathrm{(Post)}, \quad \sqrt{|x_0|^2 + \sum_l c_l^2} \; \mathrm{(Pre)}",
    meaning="Pre-LN makes the late blocks of a deep model small steps on a large stream: it trains without warm-up and "
    "needs a final norm. Post-LN asks for warm-up, because its late blocks take full steps from the start.",
    axes=Axes("blocks", "size of the stream (root mean square)", log="xy"),
)
DIM, TOKENS, PICTURES = 64, 17, 4
PRE, POST = PreNormBlock, PostNormBlock


def document_post(branches: Sequence[float]) -> float:
    return math.prod(1 + size for size in branches)


def document_pre(branches: Sequence[float]) -> float:
    return 1 + sum(branches)


def right_post(branches: Sequence[float]) -> float:
    return 1.0


def right_pre(branches: Sequence[float]) -> float:
    return math.sqrt(1 + sum(size**2 for size in branches))


def size_of(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


@dataclass(frozen=True)
class Run:
    """One pass through a fresh stack, forwards and backwards."""

    size: float  # of the stream in the end; it starts at 1
    branches: tuple[float, ...]  # the size of what each branch added
    gradients: tuple[float, ...]  # of each block's last matrix
    alike: float  # cosine of neighbouring tokens in the end


@cache
def run(kind: type[Block], depth: int, seed: int) -> Run:
    """Blocks as a ViT starts them; the score is a random direction of the normalised output."""
    branches: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [kind(DIM, SelfAttention(DIM, 4), Mlp(DIM, 4 * DIM)).apply(init_vit) for _ in range(depth)]
        x, direction = torch.randn(2, PICTURES, TOKENS, DIM)
    x = F.layer_norm(x, (DIM,))
    for block in blocks:
        for branch in (block.mixer, block.mlp):
            branch.register_forward_hook(lambda *call: branches.append(size_of(call[-1])))
        x = block(x, None)
    (F.layer_norm(x, (DIM,)) * direction).sum().backward()
    gradients = tuple(float(block.get_parameter("mlp.fc2.weight").grad.norm()) for block in blocks)  # type: ignore[union-attr]
    alike = float(F.cosine_similarity(x[:, 1:], x[:, :-1], dim=-1).mean())
    return Run(size_of(x), tuple(branches), gradients, alike)


def cases(trial: Trial) -> Iterator[Case]:
    depths = trial.choose(quick=(2, 8, 32), full=(2, 4, 8, 16, 32, 64, 128))
    for name, kind, document, right in (
        ("Post-LN", POST, document_post, right_post),
        ("Pre-LN", PRE, document_pre, right_pre),
    ):
        for depth in depths:
            branches = run(kind, depth, 0).branches
            yield Case(
                f"{name}, {depth} blocks: size of the stream",
                trial.repeat(lambda seed, kind=kind, depth=depth: run(kind, depth, seed).size),
                document=near(document(branches), share=0.5),
                right=near(right(branches), share=0.3),
                at=depth,
                group=name,
            )
    yield from about_gradients(trial, depths[0], depths[-1])


def about_gradients(trial: Trial, shallow: int, deep: int) -> Iterator[Case]:
    def last(kind: type[Block], seed: int) -> float:
        return run(kind, deep, seed).gradients[-1] / run(kind, shallow, seed).gradients[-1]

    def uneven(kind: type[Block], seed: int) -> float:
        gradients = run(kind, deep, seed).gradients
        return max(gradients) / min(gradients)

    yield Case(
        f"{deep} blocks: largest ÷ smallest gradient of a block, Pre-LN's over Post-LN's",
        trial.repeat(lambda seed: uneven(PRE, seed) / uneven(POST, seed)),
        document=AtMost(1.0),
    )
    smaller = run(PRE, shallow, 0).size / run(PRE, deep, 0).size
    sizes = f"gradient of the last block, {deep} blocks ÷ {shallow}"
    yield Case(f"Post-LN: {sizes}", trial.repeat(lambda seed: last(POST, seed)), right=near(1.0, share=0.5))
    yield Case(f"Pre-LN: {sizes}", trial.repeat(lambda seed: last(PRE, seed)), right=near(smaller, share=0.5))
    yield Case(
        f"{deep} blocks: how alike tokens are (cosine), Post-LN less Pre-LN",
        trial.repeat(lambda seed: run(POST, deep, seed).alike - run(PRE, deep, seed).alike),
        right=AtLeast(0.0),
    )


def draw(outcome: Outcome) -> Figure:
    """The usual figure, cut where the exponential leaves it."""
    figure = usual(outcome, CLAIM)
    figure.axes[0].set_ylim(0.7, 400)
    return figure
