"""Post-LN keeps activations constant; in Pre-LN they grow roughly like a random walk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import Estimate, mean_of
from vitreous.lab.figures import default_figure
from vitreous.lab.prediction import AtLeast, AtMost, near
from vitreous.lab.trial import Trial
from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import Block, PostNormBlock, PreNormBlock
from vitreous.layers.init import init_vit
from vitreous.layers.mixer import MixerContext
from vitreous.layers.mlp import Mlp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

CLAIM = Claim(
    title="Norm before or after the branch",
    statement="With the norm after the addition (Post-LN) activations grow exponentially with the number of blocks, "
    "with the norm inside the branch (Pre-LN) arithmetically. That is why Post-LN is hard to train deep, and Pre-LN "
    "has the more stable gradients.",
    sources=(Source.PRINCIPLES, Source.DEEP_DIVE),
    formula=r"|x_L| \sim (1+g)^L |x_0| \; \mathrm{(Post)}, \quad |x_0| + L C \; \mathrm{(Pre)}",
    right="Post-LN's activations are constant, since each block ends with the norm. Pre-LN's grow like the root "
    "of the sum of the branches' squares, somewhat faster than the root of the depth. Post-LN's problem is another: "
    "the gradients of its last blocks do not shrink with depth, and its tokens become similar sooner.",
    right_formula=r"|x_L| = 1 \; \mathrm{(Post)}, \quad \sqrt{|x_0|^2 + \sum_l c_l^2} \; \mathrm{(Pre)}",
    meaning="Pre-LN's late blocks are small updates of a large residual stream, while Post-LN's are large from the "
    "start. Published work finds that Pre-LN therefore trains without warm-up, which is not measured here.",
    axes=Axes("blocks", "size of the stream (root mean square)", log="xy"),
)
DIM, TOKENS, IMAGES = 64, 17, 4
CONTEXT = MixerContext(dim=DIM, num_heads=4, grid=(1, TOKENS))
PRE, POST = PreNormBlock, PostNormBlock


def document_post(branches: Sequence[float]) -> float:
    return math.prod(1 + size for size in branches)


def document_pre(branches: Sequence[float]) -> float:
    return 1 + sum(branches)


def right_post(branches: Sequence[float]) -> float:
    return 1.0


def right_pre(branches: Sequence[float]) -> float:
    return math.sqrt(1 + sum(size**2 for size in branches))


def rms_of(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


@dataclass(frozen=True)
class StackPass:
    """Measurements of one forward and backward pass through an untrained stack."""

    rms: float  # of the residual stream after the last block; it starts at 1
    branches: tuple[float, ...]  # RMS of each branch's output
    gradients: tuple[float, ...]  # norm, of each block's last matrix
    similarity: float  # cosine of neighboring tokens after the last block


def run(kind: type[Block], depth: int, seed: int) -> StackPass:
    """Run blocks with ViT initialization; the loss projects the normalized output on a random direction."""
    branches: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [kind(DIM, SelfAttention(CONTEXT), Mlp(DIM, 4 * DIM)).apply(init_vit) for _ in range(depth)]
        x, direction = torch.randn(2, IMAGES, TOKENS, DIM)
    x = F.layer_norm(x, (DIM,))
    for block in blocks:
        for branch in (block.mixer, block.mlp):
            branch.register_forward_hook(lambda *call: branches.append(rms_of(call[-1])))
        x = block(x, None)
    (F.layer_norm(x, (DIM,)) * direction).sum().backward()
    gradients = tuple(float(block.get_parameter("mlp.fc2.weight").grad.norm()) for block in blocks)  # type: ignore[union-attr]
    similarity = float(F.cosine_similarity(x[:, 1:], x[:, :-1], dim=-1).detach().mean())
    return StackPass(rms_of(x), tuple(branches), gradients, similarity)


Passes = dict[tuple[type[Block], int], list[StackPass]]


def cases(trial: Trial) -> Iterator[Case]:
    depths = trial.choose(quick=(2, 8, 32), full=(2, 4, 8, 16, 32, 64, 128))
    runs: Passes = {(k, depth): [run(k, depth, seed) for seed in trial.seeds] for k in (POST, PRE) for depth in depths}
    for name, kind, document, right, share in (
        ("Post-LN", POST, document_post, right_post, 0.01),
        ("Pre-LN", PRE, document_pre, right_pre, 0.3),
    ):
        for depth in depths:
            own = runs[kind, depth]
            yield Case(
                f"{name}, {depth} blocks: size of the stream",
                mean_of([each.rms for each in own]),
                document=near(document(own[0].branches), share=0.3),
                right=near(right(own[0].branches), share=share),
                at=depth,
                group=name,
            )
    yield from about_gradients(runs, depths[0], depths[-1])


def about_gradients(runs: Passes, shallow: int, deep: int) -> Iterator[Case]:
    uneven = {kind: [max(r.gradients) / min(r.gradients) for r in runs[kind, deep]] for kind in (PRE, POST)}
    yield Case(
        f"{deep} blocks: largest ÷ smallest gradient of a block, Pre-LN's over Post-LN's",
        mean_of([pre / post for pre, post in zip(uneven[PRE], uneven[POST], strict=True)]),
        document=AtMost(1.0),
    )
    less = runs[PRE, shallow][0].rms / runs[PRE, deep][0].rms
    sizes = f"gradient of the last block, {deep} blocks ÷ {shallow}"
    yield Case(f"Post-LN: {sizes}", last_gradient(runs, POST, shallow, deep), right=near(1.0, share=0.5))
    ratio = last_gradient(runs, PRE, shallow, deep)
    yield Case(f"Pre-LN: {sizes}", ratio, document=AtMost(1.0), right=near(less, share=0.5))
    yield Case(
        f"{deep} blocks: similarity of tokens (cosine), Post-LN less Pre-LN",
        mean_of(
            [post.similarity - pre.similarity for post, pre in zip(runs[POST, deep], runs[PRE, deep], strict=True)]
        ),
        right=AtLeast(0.0),
    )


def last_gradient(runs: Passes, kind: type[Block], shallow: int, deep: int) -> Estimate:
    pairs = zip(runs[kind, deep], runs[kind, shallow], strict=True)
    return mean_of([of_deep.gradients[-1] / of_shallow.gradients[-1] for of_deep, of_shallow in pairs])


def draw(outcome: ClaimOutcome) -> Figure:
    """Plot the default figure, cropped where the exponential leaves it."""
    figure = default_figure(outcome, CLAIM)
    figure.axes[0].set_ylim(0.7, 400)
    return figure
