"""Fit a new classifier to frozen features before fine-tuning: linear probing, then fine-tuning.

    minimize over W, b:   mean loss(W z + b, target) + λ/2 · ‖W‖²,     z: pooled features, standardized

"Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution", Kumar et al. 2022 (arXiv
2202.10054): with a random head the first gradients distort good features. The probe takes one forward pass per
image; the standardization is folded into W and b.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.data.base import Dataset
from vitreous.data.loader import EvaluationLoader
from vitreous.models.base import Backbone, Model
from vitreous.samples import Classes

WEIGHT_DECAY = 0.03  # λ, tuned for a few hundred images; with many the data term dominates
MAX_IMAGES = 10_000  # to fit the probe to, evenly spaced over the dataset
MAX_CLASSES = 2_000  # more need gigabytes: one float64 target per image and class, a hundred past gradients of L-BFGS
ITERATIONS = 200


def can_probe(model: Model) -> bool:
    """Return whether the classifier is a single linear layer on pooled features."""
    return isinstance(model, Backbone) and model.head_names == ("head",) and isinstance(model.head, nn.Linear)


def is_untrained(head: nn.Module) -> bool:
    """Return whether a classifier is freshly initialized, which leaves its bias at zero."""
    return isinstance(head, nn.Linear) and head.bias is not None and not bool(head.bias.any())


def fit_head(model: Model, data: Dataset, *, device: str, workers: int = 0) -> str:
    """Fit ``model.head`` to frozen features of the training images, in place, and return a one-line summary."""
    if not can_probe(model):
        raise ValueError(
            f"train.new_head 'probe' needs a single linear classifier, which {type(model).__name__} does not have; "
            "choose 'random'"
        )
    assert isinstance(model, Backbone)
    assert isinstance(model.head, nn.Linear)
    if len(data.classes) > MAX_CLASSES:
        raise ValueError(
            f"train.new_head 'probe' fits at most {MAX_CLASSES:,} classes, the data has {len(data.classes):,}; choose "
            "'random'"
        )
    model.to(device)
    features, targets = extract_features(model, data, workers)
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
    weight, bias = fit_linear((features - mean) / deviation, targets, multilabel=data.target is not Classes)
    weight = weight / deviation
    with torch.no_grad():
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias - weight @ mean)
    correct = (features @ weight.T + bias - weight @ mean).argmax(1) == targets.nan_to_num().argmax(1)
    fitted = f" (training accuracy {correct.double().mean():.1%})" if data.target is Classes else ""
    return f"the classifier is initialized by a linear probe on {len(features):,} training images{fitted}"


@torch.no_grad()
def extract_features(model: Backbone, data: Dataset, workers: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n k"]]:
    """Return pooled features and class targets, on the CPU in double precision."""
    model.eval()
    device = next(model.parameters()).device
    loader = EvaluationLoader(data, model.spec.preprocess, batch_size=64, workers=workers)
    features, targets = [], []
    for _, batch in loader.batches(np.linspace(0, len(data) - 1, min(MAX_IMAGES, len(data))).astype(np.int64)):
        assert isinstance(batch.targets, Classes)
        features.append(model.pooled(model.features(batch.images.to(device))).double().cpu())
        targets.append(batch.targets.values.double())
    return torch.cat(features), torch.cat(targets)


def fit_linear(
    z: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], *, multilabel: bool
) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """Fit a linear classifier by L-BFGS from zero, with cross-entropy, or binary cross-entropy if ``multilabel``."""
    weight = z.new_zeros(targets.shape[1], z.shape[1], requires_grad=True)
    bias = z.new_zeros(targets.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")
    known = ~targets.isnan()

    def objective() -> Tensor:
        optimizer.zero_grad()
        logits = z @ weight.T + bias
        if multilabel:
            losses = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
            loss = (losses * known).sum() / known.sum()
        else:
            loss = F.cross_entropy(logits, targets)
        total = loss + WEIGHT_DECAY / 2 * weight.square().sum()
        total.backward()
        return total

    optimizer.step(objective)
    return weight.detach(), bias.detach()
