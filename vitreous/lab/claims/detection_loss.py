"""DETR's box loss is masked by the targets; masked at the index of the prediction, most boxes get no loss."""

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
    right="The condition is on the target i itself: only it determines whether there is a box to learn. σ(i) is "
    "the index of a prediction: with the condition there, each of k objects gets a box loss with probability k/N.",
    right_formula=r"L = \sum_i \left[ \alpha \, L_{class}(c_i, \hat{c}_{\sigma(i)}) +"
    r" 1[c_i \neq \emptyset] \, L_{box}(b_i, \hat{b}_{\sigma(i)}) \right]",
    meaning="Mask the box loss by the targets, after matching. Masked at the wrong index most boxes get no loss, "
    "and since the class loss still falls you may not notice. Masked by the predicted class they get one late, only "
    "after the slots have learned to predict an object.",
)
SLOTS, OBJECTS, CLASSES, STEPS = 10, 3, 4, 60
NOTHING = CLASSES
Indicator = Callable[[Tensor, Tensor], Tensor]


def of_the_target(matched: Tensor, logits: Tensor) -> Tensor:
    """Mask by the target: every object is one, so always true."""
    return torch.ones_like(matched, dtype=torch.bool)


def of_the_index(matched: Tensor, logits: Tensor) -> Tensor:
    """Mask as printed in the text: true if the target at the index of the matched prediction is an object."""
    return matched < OBJECTS


def of_the_prediction(matched: Tensor, logits: Tensor) -> Tensor:
    """Alternative reading of the text: true if the matched prediction's class is an object."""
    return logits.argmax(-1).gather(1, matched) != NOTHING


def document() -> float:
    """Share of objects that should get a box loss."""
    return 1.0


def right() -> float:
    """Share that passes the text's condition: the matching does not depend on the order of the slots."""
    return OBJECTS / SLOTS


def match(logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor) -> Tensor:
    """Match each object to a prediction by the Hungarian algorithm with DETR's costs; returns indices (s, k)."""
    with torch.no_grad():
        chance = logits.softmax(-1).transpose(1, 2).gather(1, classes[..., None].expand(-1, -1, SLOTS))
        overlap = [generalized_box_iou(*pair) for pair in zip(corners(truth), corners(boxes), strict=True)]
        costs = 5 * torch.cdist(truth, boxes, p=1) - 2 * torch.stack(overlap) - chance
    return torch.from_numpy(np.stack([linear_sum_assignment(cost)[1] for cost in costs.numpy()]))


def corners(boxes: Tensor) -> Tensor:
    return box_convert(boxes, "cxcywh", "xyxy")


def loss(logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor, indicator: Indicator) -> Tensor:
    """Class loss over all slots, unmatched ones with target ∅, plus the masked box loss of the matched ones."""
    matched = match(logits, boxes, classes, truth)
    targets = torch.full(logits.shape[:2], NOTHING).scatter(1, matched, classes)
    predicted = gather_boxes(boxes, matched)
    errors = 5 * (predicted - truth).abs().sum(-1) + 2 * generalized_box_iou_loss(corners(predicted), corners(truth))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + (errors * indicator(matched, logits)).mean()


def gather_boxes(boxes: Tensor, matched: Tensor) -> Tensor:
    return boxes.gather(1, matched[..., None].expand(-1, -1, 4))


def scenes(number: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Untrained slots biased towards ∅ (class logits, box logits), and classes and boxes of the objects."""
    draws = torch.Generator().manual_seed(seed)
    logits = 0.1 * torch.randn(number, SLOTS, CLASSES + 1, generator=draws)
    logits[..., NOTHING] += 1
    box_logits = torch.randn(number, SLOTS, 4, generator=draws)
    centers, sides = (torch.rand(number, OBJECTS, 2, generator=draws) for _ in range(2))
    truth = torch.cat([0.2 + 0.6 * centers, 0.1 + 0.3 * sides], dim=-1)
    return logits, box_logits, torch.randint(CLASSES, (number, OBJECTS), generator=draws), truth


def trained_at_first(indicator: Indicator, seed: int) -> float:
    """Share of objects that get a box loss at initialization."""
    logits, box_logits, classes, truth = scenes(50, seed)
    return float(indicator(match(logits, box_logits.sigmoid(), classes, truth), logits).double().mean())


def final_overlap(indicator: Indicator, seed: int) -> float:
    """Mean intersection over union of objects and their boxes after training the slots on their scene."""
    logits, box_logits, classes, truth = scenes(4, seed)
    optimizer = torch.optim.Adam([logits.requires_grad_(), box_logits.requires_grad_()], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(logits, box_logits.sigmoid(), classes, truth, indicator).backward()
        optimizer.step()
    boxes = box_logits.detach().sigmoid()
    predicted = gather_boxes(boxes, match(logits, boxes, classes, truth))
    return float(box_iou(corners(predicted).flatten(0, 1), corners(truth).flatten(0, 1)).diagonal().mean())


def cases(trial: Trial) -> Iterator[Case]:
    trained, overlap = "objects whose box gets a loss at first", "overlap of boxes and objects at the end"
    yield Case(f"condition on σ(i), as printed: {trained}", trial.repeat(partial(trained_at_first, of_the_index)),
               document=Near(document(), 0.05), right=Near(right(), 0.1))  # fmt: skip
    yield Case(f"condition on σ(i), as printed: {overlap}", trial.repeat(partial(final_overlap, of_the_index)),
               document=AtLeast(0.85), right=AtMost(0.8))  # fmt: skip
    yield Case(f"read as the predicted class: {trained}", trial.repeat(partial(trained_at_first, of_the_prediction)),
               right=AtMost(0.1))  # fmt: skip
    yield Case(f"read as the predicted class: {overlap}", trial.repeat(partial(final_overlap, of_the_prediction)),
               document=AtLeast(0.85))  # fmt: skip
    yield Case(f"condition on the target: {overlap}", trial.repeat(partial(final_overlap, of_the_target)),
               right=AtLeast(0.85))  # fmt: skip
