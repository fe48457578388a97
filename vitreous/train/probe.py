"""Fit a new classifier to frozen features before fine-tuning: linear probing, then fine-tuning.

    minimize over W, b:   mean loss(W z + b, target) + λ/2 · ‖W‖²,     z: pooled features, standardized

"Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution", Kumar et al. 2022 (arXiv
2202.10054): with a random head the first gradients bend good features to serve bad logits. The probe takes one forward
pass per image, and the standardization is folded into W and b.
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

WEIGHT_DECAY = 0.03  # the λ that suits a few hundred images; with many the loss outweighs it
MOST = 10_000  # images that the probe looks at, spread evenly over the set
ITERATIONS = 200


def can_probe(model: Model) -> bool:
    """Whether the model reads its classes from pooled features by one linear layer."""
    return isinstance(model, Backbone) and model.head_names == ("head",) and isinstance(model.head, nn.Linear)


def is_new(head: nn.Module) -> bool:
    """Whether a classifier has learned nothing yet: its bias is zero, as it was made."""
    return isinstance(head, nn.Linear) and head.bias is not None and not bool(head.bias.any())


def fit_head(model: Model, data: Dataset, *, device: str, workers: int = 0) -> str:
    """Fit ``model.head`` to the features of the training images; a sentence says how well that went."""
    if not can_probe(model):
        raise ValueError(
            f"train.new_head 'probe' needs a classifier of one linear layer, which a {type(model).__name__} does "
            "not have; choose 'random'"
        )
    assert isinstance(model, Backbone)
    assert isinstance(model.head, nn.Linear)
    model.to(device)
    features, targets = look(model, data, workers)
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
    weight, bias = solve((features - mean) / deviation, targets, several=data.target is not Classes)
    weight = weight / deviation
    with torch.no_grad():
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias - weight @ mean)
    right = (features @ weight.T + bias - weight @ mean).argmax(1) == targets.nan_to_num().argmax(1)
    fitted = f", {right.double().mean():.1%} of them right" if data.target is Classes else ""
    return f"the classifier starts from a linear probe of {len(features):,} training images{fitted}"


@torch.no_grad()
def look(model: Backbone, data: Dataset, workers: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n k"]]:
    """Pooled features and class vectors, on the CPU in double precision."""
    model.eval()
    device = next(model.parameters()).device
    loader = EvaluationLoader(data, model.spec.preprocess, batch_size=64, workers=workers)
    features, targets = [], []
    for _, batch in loader.part(np.linspace(0, len(data) - 1, min(MOST, len(data))).astype(np.int64)):
        assert isinstance(batch.targets, Classes)
        features.append(model.pooled(model.features(batch.images.to(device))).double().cpu())
        targets.append(batch.targets.values.double())
    return torch.cat(features), torch.cat(targets)


def solve(
    z: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], *, several: bool
) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """Minimize the regularized cross-entropy, with a softmax or a sigmoid per label, by L-BFGS from zero."""
    weight = z.new_zeros(targets.shape[1], z.shape[1], requires_grad=True)
    bias = z.new_zeros(targets.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")
    known = ~targets.isnan()

    def objective() -> Tensor:
        optimizer.zero_grad()
        logits = z @ weight.T + bias
        if several:
            losses = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
            loss = (losses * known).sum() / known.sum()
        else:
            loss = F.cross_entropy(logits, targets)
        total = loss + WEIGHT_DECAY / 2 * weight.square().sum()
        total.backward()
        return total

    optimizer.step(objective)
    return weight.detach(), bias.detach()
