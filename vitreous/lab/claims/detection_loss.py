"""DETR teaches a box where the target holds an object; asked at the number of the prediction, most are not taught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchvision.ops import box_convert, box_iou, generalized_box_iou, generalized_box_iou_loss

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="The loss of DETR",
    statement="DETR matches N targets, real objects filled up with ∅ (nothing), to N predictions by a permutation σ. "
    "Each pair has a loss for its class and, if the class with the number σ(i) is not ∅, one for its box.",
    sources=(Source.FOUNDATIONS,),
    formula=r"L = \sum_i \left[ \alpha \, L_{class}(c_i, \hat{c}_{\sigma(i)}) +"
    r" 1[c_{\sigma(i)} \neq \emptyset] \, L_{box}(b_i, \hat{b}_{\sigma(i)}) \right]",
    right="The condition is on the target i itself, the only one that knows whether there is a box to learn. σ(i) "
    "counts predictions: asked there, each of k objects is taught with probability k/N.",
    right_formula=r"L = \sum_i \left[ \alpha \, L_{class}(c_i, \hat{c}_{\sigma(i)}) +"
    r" 1[c_i \neq \emptyset] \, L_{box}(b_i, \hat{b}_{\sigma(i)}) \right]",
    meaning="Mask the box loss by the targets, after matching. Masked at the wrong index most boxes are not taught, "
    "and since the class loss still falls you may not notice. Masked by the predicted class they are taught late, "
    "only after the slots have learned to say that there is something.",
)
SLOTS, OBJECTS, CLASSES, STEPS = 10, 3, 4, 60
NOTHING = CLASSES
Indicator = Callable[[Tensor, Tensor], Tensor]


def of_the_target(matched: Tensor, logits: Tensor) -> Tensor:
    """Whether each object's box is taught: an object is one, so always."""
    return torch.ones_like(matched, dtype=torch.bool)


def of_the_index(matched: Tensor, logits: Tensor) -> Tensor:
    """As the text prints it: whether the target with the number of the matched prediction is an object."""
    return matched < OBJECTS


def of_the_prediction(matched: Tensor, logits: Tensor) -> Tensor:
    """Another way to read the text: whether the matched prediction says that it is an object."""
    return logits.argmax(-1).gather(1, matched) != NOTHING


def document() -> float:
    """The share of objects whose box should be taught."""
    return 1.0


def right() -> float:
    """The share that the text's condition lets through: the matching is indifferent to the numbers of the slots."""
    return OBJECTS / SLOTS


def match(logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor) -> Tensor:
    """(s, k): each object's prediction by the Hungarian method, with DETR's costs of class, distance and overlap."""
    with torch.no_grad():
        chance = logits.softmax(-1).transpose(1, 2).gather(1, classes[..., None].expand(-1, -1, SLOTS))
        overlap = [generalized_box_iou(*pair) for pair in zip(corners(truth), corners(boxes), strict=True)]
        costs = 5 * torch.cdist(truth, boxes, p=1) - 2 * torch.stack(overlap) - chance
    return torch.from_numpy(np.stack([linear_sum_assignment(cost)[1] for cost in costs.numpy()]))


def corners(boxes: Tensor) -> Tensor:
    return box_convert(boxes, "cxcywh", "xyxy")


def loss(logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor, indicator: Indicator) -> Tensor:
    """Slots that no object is matched to are to say ∅; they have no box to learn."""
    matched = match(logits, boxes, classes, truth)
    wanted = torch.full(logits.shape[:2], NOTHING).scatter(1, matched, classes)
    own = picked(boxes, matched)
    apart = 5 * (own - truth).abs().sum(-1) + 2 * generalized_box_iou_loss(corners(own), corners(truth))
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) + (apart * indicator(matched, logits)).mean()


def picked(boxes: Tensor, matched: Tensor) -> Tensor:
    return boxes.gather(1, matched[..., None].expand(-1, -1, 4))


def scenes(number: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Untaught slots that lean towards ∅ (class logits, boxes before a sigmoid); classes and boxes of the objects."""
    draws = torch.Generator().manual_seed(seed)
    logits = 0.1 * torch.randn(number, SLOTS, CLASSES + 1, generator=draws)
    logits[..., NOTHING] += 1
    places = torch.randn(number, SLOTS, 4, generator=draws)
    centers, sides = (torch.rand(number, OBJECTS, 2, generator=draws) for _ in range(2))
    truth = torch.cat([0.2 + 0.6 * centers, 0.1 + 0.3 * sides], dim=-1)
    return logits, places, torch.randint(CLASSES, (number, OBJECTS), generator=draws), truth


def taught_at_first(indicator: Indicator, seed: int) -> float:
    logits, places, classes, truth = scenes(50, seed)
    return float(indicator(match(logits, places.sigmoid(), classes, truth), logits).double().mean())


def overlap_at_last(indicator: Indicator, seed: int) -> float:
    """How well the boxes of objects are found once the slots have learned their scene: intersection over union."""
    logits, places, classes, truth = scenes(4, seed)
    optimizer = torch.optim.Adam([logits.requires_grad_(), places.requires_grad_()], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(logits, places.sigmoid(), classes, truth, indicator).backward()
        optimizer.step()
    boxes = places.detach().sigmoid()
    own = picked(boxes, match(logits, boxes, classes, truth))
    return float(box_iou(corners(own).flatten(0, 1), corners(truth).flatten(0, 1)).diagonal().mean())


def cases(trial: Trial) -> Iterator[Case]:
    taught, overlap = "objects whose box is taught at first", "overlap of boxes and objects in the end"
    yield Case(f"condition on σ(i), as printed: {taught}", trial.repeat(partial(taught_at_first, of_the_index)),
               document=Near(document(), 0.05), right=Near(right(), 0.1))  # fmt: skip
    yield Case(f"condition on σ(i), as printed: {overlap}", trial.repeat(partial(overlap_at_last, of_the_index)),
               document=AtLeast(0.85), right=AtMost(0.8))  # fmt: skip
    yield Case(f"read as the predicted class: {taught}", trial.repeat(partial(taught_at_first, of_the_prediction)),
               right=AtMost(0.1))  # fmt: skip
    yield Case(f"read as the predicted class: {overlap}", trial.repeat(partial(overlap_at_last, of_the_prediction)),
               document=AtLeast(0.85))  # fmt: skip
    yield Case(f"condition on the target: {overlap}", trial.repeat(partial(overlap_at_last, of_the_target)),
               right=AtLeast(0.85))  # fmt: skip
