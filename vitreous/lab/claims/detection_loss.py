"""DETR teaches a box where the *target* holds an object; asking at the index of the prediction teaches the wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchvision.ops import box_convert, box_iou, generalized_box_iou

from vitreous.lab.claim import Case, Claim, Source
from vitreous.lab.estimate import mean_of
from vitreous.lab.prediction import AtLeast, AtMost, Near
from vitreous.lab.trial import Trial

CLAIM = Claim(
    title="The loss of DETR",
    statement="DETR matches N targets, real objects filled up with ∅ (nothing), to N predictions by a permutation σ. Each "
    "pair has a loss for its class and, if the class with the number σ(i) is not ∅, one for its box.",
    sources=(Source.FOUNDATIONS,),
    formula=r"L = \sum_i \left[ \alpha \, L_{class}(c_i, \hat{c}_{\sigma(i)}) +"
    r" 1[c_{\sigma(i)} \neq \emptyset] \, L_{box}(b_i, \hat{b}_{\sigma(i)}) \right]",
    right="The condition is on the target i itself, the only one that knows whether there is a box to learn. σ(i) counts "
    "predictions: asked there, k objects among N slots are taught with probability k/N each.",
    right_formula=r"L = \sum_i \left[ \alpha \, L_{class}(c_i, \hat{c}_{\sigma(i)}) +"
    r" 1[c_i \neq \emptyset] \, L_{box}(b_i, \hat{b}_{\sigma(i)}) \right]",
    meaning="Mask the box loss by the targets, after matching. Masked by the index or by the predicted class, most boxes "
    "are never taught, and since the class loss still falls the curve will not tell you.",
)
SLOTS, OBJECTS, CLASSES, SCENES, STEPS = 10, 3, 4, 8, 60
NOTHING = CLASSES
Indicator = Callable[[Tensor, Tensor], Tensor]


def of_the_target(matched: Tensor, logits: Tensor) -> Tensor:
    """Whether the box of each object is taught: the target is an object, so always."""
    return torch.ones(len(matched), dtype=torch.bool)


def of_the_index(matched: Tensor, logits: Tensor) -> Tensor:
    """As the text prints it: whether the target with the number of the matched prediction is an object."""
    return matched < OBJECTS


def of_the_prediction(matched: Tensor, logits: Tensor) -> Tensor:
    """The other way to read the text: whether the matched prediction says that it is an object."""
    return logits[matched].argmax(1) != NOTHING


def document() -> float:
    """Share of objects whose box is taught, for a loss that serves its purpose."""
    return 1.0


def right() -> float:
    """Of the text's condition: objects among the slots, since the matching is indifferent to numbers."""
    return OBJECTS / SLOTS


def match(logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor) -> Tensor:
    """The prediction of each object by the Hungarian method, with DETR's costs of class, distance and overlap."""
    with torch.no_grad():
        chance = logits.softmax(1)[:, classes].T
        distance = torch.cdist(truth, boxes, p=1)
        overlap = generalized_box_iou(corners(truth), corners(boxes))
        return torch.from_numpy(linear_sum_assignment((5 * distance - 2 * overlap - chance).numpy())[1])


def corners(boxes: Tensor) -> Tensor:
    return box_convert(boxes, "cxcywh", "xyxy")


def loss(logits: Tensor, boxes: Tensor, classes: Tensor, truth: Tensor, indicator: Indicator) -> Tensor:
    """Of one scene; slots beyond the objects are targets of the class ∅ and have no box."""
    matched = match(logits, boxes, classes, truth)
    wanted = torch.full((SLOTS,), NOTHING)
    wanted[matched] = classes
    taught = indicator(matched, logits)
    near, far = boxes[matched], truth
    apart = 5 * (near - far).abs().sum(1) + 2 * (1 - generalized_box_iou(corners(near), corners(far)).diagonal())
    return F.cross_entropy(logits, wanted) + (apart * taught).sum() / OBJECTS


def scene(dice: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Untaught class logits and boxes (before a sigmoid) of every slot, which say ∅; classes and boxes of the objects."""
    logits = 0.1 * torch.randn(SLOTS, CLASSES + 1, generator=dice)
    logits[:, NOTHING] += 1
    truth = torch.rand(OBJECTS, 4, generator=dice) * torch.tensor([0.6, 0.6, 0.3, 0.3]) + torch.tensor([0.2, 0.2, 0.1, 0.1])
    return logits, torch.randn(SLOTS, 4, generator=dice), torch.randint(CLASSES, (OBJECTS,), generator=dice), truth


def train(indicator: Indicator, seed: int) -> tuple[float, float]:
    """Slots that learn a scene each: the share of objects whose box is taught at first, and their overlap at the end."""
    dice = torch.Generator().manual_seed(seed)
    at_first, at_last = [], []
    for _ in range(SCENES):
        logits, places, classes, truth = scene(dice)
        at_first.append(indicator(match(logits, places.sigmoid(), classes, truth), logits).double().mean())
        parameters = [logits.requires_grad_(), places.requires_grad_()]
        optimiser = torch.optim.Adam(parameters, lr=0.1)
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss(logits, places.sigmoid(), classes, truth, indicator).backward()
            optimiser.step()
        boxes = places.detach().sigmoid()
        matched = match(logits, boxes, classes, truth)
        at_last.append(box_iou(corners(boxes[matched]), corners(truth)).diagonal().mean())
    return float(torch.stack(at_first).mean()), float(torch.stack(at_last).mean())
