"""CLIP's loss is symmetric; with the image-to-caption half alone, retrieval of images by caption suffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.lab.claim import Axes, Case, Claim, Source
from vitreous.lab.estimate import bootstrap, exactly, mean_of
from vitreous.lab.prediction import AtLeast, AtMost, Near, Prediction
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="The contrastive loss of CLIP",
    statement="CLIP's loss is half the cross-entropy of finding, for each image, its caption among all captions of "
    "the batch; this direction, from images to captions, is taken to suffice.",
    sources=(Source.FOUNDATIONS,),
    formula=r"L = -\frac{1}{2} E \left[ \log \frac{\exp(\mathrm{sim}(v, t_+) / \tau)}"
    r"{\sum_{t'} \exp(\mathrm{sim}(v, t') / \tau)} \right]",
    right="The half belongs to a mean of two such terms: one finds the caption of every image, the other the "
    "image of every caption. With one term alone there is no penalty if one image is more similar to every caption "
    "than all other images are.",
    right_formula=r"L = -\frac{1}{2 n} \sum_i \left[ \log \frac{e^{s_{ii} / \tau}}{\sum_j e^{s_{ij} / \tau}} +"
    r" \log \frac{e^{s_{ii} / \tau}}{\sum_j e^{s_{ji} / \tau}} \right]",
    meaning="Use both directions: it costs one more softmax. What one direction costs depends on the data; here, "
    "where images contain features that captions never mention, retrieving images by text suffers, more so with dot "
    "products than with cosines, since nothing limits the norm of an image embedding, and a long one is retrieved for "
    "every caption.",
    axes=Axes("training steps", "images found by caption,\ntrained one way ÷ both ways"),
)
PAIRS, SHARED, FEATURES, NUISANCES, WIDTH = 128, 8, 16, 4, 8
Loss = Callable[[Tensor], Tensor]
Similarity = Callable[[Tensor, Tensor], Tensor]


def one_way(similarities: Tensor) -> Tensor:
    """The text's loss: rows are images, columns captions, matching pairs on the diagonal."""
    return F.cross_entropy(similarities, torch.arange(len(similarities))) / 2


def both_ways(similarities: Tensor) -> Tensor:
    """Sum of the image-to-caption and the caption-to-image half."""
    return one_way(similarities) + one_way(similarities.T)


def cosines(images: Tensor, captions: Tensor) -> Tensor:
    """Cosine similarities at a temperature τ of 0.1."""
    return F.normalize(images, dim=1) @ F.normalize(captions, dim=1).T / 0.1


def products(images: Tensor, captions: Tensor) -> Tensor:
    return images @ captions.T


def pairs(count: int, mixing: dict[str, Tensor], draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw features of images and captions that share content; images also have content no caption mentions."""
    shared, private = (torch.randn(count, size, generator=draws) for size in (SHARED, NUISANCES))
    images, captions = (
        shared @ mixing["image"] + private @ mixing["private"],
        shared @ mixing["caption"] + mixing["offset"],
    )
    noise = 0.3 * torch.randn(2, count, FEATURES, generator=draws)
    return images + noise[0], captions + noise[1]


def search_by_text(loss: Loss, similarity: Similarity, after: Sequence[int], seed: int) -> list[float]:
    """Train two linear encoders; return the share of 512 new captions that retrieve their image, by step."""
    draws = torch.Generator().manual_seed(seed)
    sizes = {"image": SHARED, "caption": SHARED, "private": NUISANCES, "offset": 1}
    mixing = {name: torch.randn(size, FEATURES, generator=draws) / size**0.5 for name, size in sizes.items()}
    encoders = [torch.randn(FEATURES, WIDTH, generator=draws).div_(FEATURES**0.5).requires_grad_() for _ in range(2)]
    new = pairs(512, mixing, draws)
    optimizer = torch.optim.Adam(encoders, lr=0.02)
    shares = []
    for step in range(1, max(after) + 1):
        optimizer.zero_grad()
        loss(similarity(*encoded(pairs(PAIRS, mixing, draws), encoders))).backward()
        optimizer.step()
        if step in after:
            best = similarity(*encoded(new, encoders)).argmax(0)
            shares.append(float((best == torch.arange(len(best))).double().mean()))
    return shares


def encoded(features: tuple[Tensor, Tensor], encoders: list[Tensor]) -> list[Tensor]:
    return [given @ encoder for given, encoder in zip(features, encoders, strict=True)]


def document(number: int) -> float:
    """Loss of an untrained model, to which all captions are equally likely."""
    return math.log(number) / 2


def right(number: int) -> float:
    return math.log(number)


def cases(trial: Trial) -> Iterator[Case]:
    initial_loss = float(both_ways(torch.zeros(PAIRS, PAIRS)))
    yield Case(f"loss of {PAIRS} pairs before anything is learned", exactly(initial_loss),
               document=Near(document(PAIRS), 0.01), right=Near(right(PAIRS), 0.01))  # fmt: skip
    after = trial.choose(quick=(25, 100), full=(25, 50, 100, 200))
    ends: dict[str, Prediction] = {"cosines": AtLeast(0.85), "dot products": AtMost(0.85)}
    for name, similarity in (("cosines", cosines), ("dot products", products)):
        one, both = (
            np.array([search_by_text(loss, similarity, after, seed) for seed in trial.seeds])
            for loss in (one_way, both_ways)
        )
        for index, steps in enumerate(after):
            kept = bootstrap(np.stack([one[:, index], both[:, index]], axis=1), share_kept)
            yield Case(f"{name}, after {steps} steps: images found by caption, one way ÷ both ways",
                       kept, document=Near(1.0, 0.1), right=ends[name] if steps == after[-1] else None,
                       at=steps, group=name)  # fmt: skip
        yield Case(f"{name}: images found by caption, trained both ways", mean_of(list(both[:, -1])),
                   right=AtLeast(0.05))  # fmt: skip


def share_kept(rows: NDArray[np.float64]) -> float:
    """Captions that retrieve their image when trained one way, divided by those when trained both ways."""
    return float(rows[:, 0].mean() / rows[:, 1].mean())
