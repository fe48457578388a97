"""Norms, regularization, schedules and losses."""

import math

import torch
import torch.nn.functional as F

from tests.lab.mutations.base import Mutation
from vitreous.data import mixing
from vitreous.samples import Classes


def deviation_plus_eps(self, x):
    """LayerNorm with ε beside the root."""
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, correction=0)
    return (x - mean) / (deviation + self.eps)


def unbiased(self, x):
    return (x - x.mean((1, 2), keepdim=True)) / (x.var((1, 2), keepdim=True) + self.eps).sqrt()


def undivided(self, x):
    """DropPath that forgets to divide by what it keeps."""
    keep = x.new_empty(x.shape[:1] + (1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
    return x * keep if self.training else x


def one_coin(self, x):
    return x * (torch.rand(()) >= self.rate) / (1 - self.rate) if self.training else x


def one_weight(augment, size, draws):
    """MixUp's weights with the α of CutMix."""
    return draws.beta("cutmix", augment.cutmix, 1)[:, :, None]


def label_as_drawn(original):
    """CutMix whose label keeps the λ that was drawn, although the box was cut off at the border."""

    def mix(images, targets, augment, draws):
        mixed, _ = original(images, targets, augment, draws)
        share = torch.from_numpy(draws.beta("cutmix", 1.0, 1))
        partner = torch.from_numpy(mixing.partners(len(images)))
        values = share * targets.values + (1 - share) * targets.values[partner]
        return mixed, Classes(values)

    return mix


def bias_inside(original):
    """Attention that divides the bias by √d with the rest."""

    def forward(self, q, k, v, *, bias=None, **options):
        return original(self, q, k, v, bias=None if bias is None else bias * self.scale(q), **options)

    return forward


def without_squared_temperature(pupil, advice, task):
    believed, known = ((logits / task.temperature).log_softmax(dim=1) for logits in (pupil, advice))
    return F.kl_div(believed, known, log_target=True, reduction="batchmean")


def class_head_alone(heads):
    return heads["class"]


MUTATIONS = [
    Mutation(
        "layer_norm",
        "ε is added to the deviation, not to the variance",
        "torch.nn:LayerNorm.forward",
        lambda original: deviation_plus_eps,
    ),
    Mutation(
        "layer_norm",
        "the variance is divided by one less than the number of values",
        "vitreous.layers.norm:ImageNorm.forward",
        lambda original: unbiased,
    ),
    Mutation(
        "drop_path",
        "kept branches are not divided by the share that is kept",
        "vitreous.layers.drop:DropPath.forward",
        lambda original: undivided,
    ),
    Mutation(
        "drop_path",
        "one coin for the whole batch",
        "vitreous.layers.drop:DropPath.forward",
        lambda original: one_coin,
    ),
    Mutation(
        "cutmix",
        "MixUp in the place of CutMix",
        "vitreous.data.mixing:KINDS",
        lambda original: {**original, "cutmix": one_weight},
    ),
    Mutation(
        "cutmix",
        "the label keeps the λ that was drawn",
        "vitreous.lab.claims.cutmix:mix",
        label_as_drawn,
    ),
    Mutation(
        "cosine_schedule",
        "a bare cosine that turns negative",
        "vitreous.train.schedule:Cosine.decayed",
        lambda original: lambda self, step, total, warmup: math.cos(math.pi * (step - warmup) / (total - warmup)),
    ),
    Mutation(
        "cosine_schedule",
        "the warm-up is counted as a part of the decay",
        "vitreous.train.schedule:Cosine.decayed",
        lambda original: lambda self, step, total, warmup: (1 + math.cos(math.pi * step / total)) / 2,
    ),
    Mutation(
        "relative_bias",
        "the bias is divided by √d too",
        "vitreous.layers.attention:Attend.forward",
        bias_inside,
    ),
    Mutation(
        "distillation_loss",
        "no T² before the soft loss",
        "vitreous.tasks.distill:disagreement",
        lambda original: without_squared_temperature,
    ),
    Mutation(
        "distillation_loss",
        "the class head answers alone",
        "vitreous.models.base:combine",
        lambda original: class_head_alone,
    ),
    Mutation(
        "contrastive_loss",
        "one direction is counted twice",
        "vitreous.lab.claims.contrastive_loss:both_ways",
        lambda original: lambda similarities: F.cross_entropy(similarities, torch.arange(len(similarities))),
    ),
    Mutation(
        "detection_loss",
        "objects are matched to predictions in their order",
        "vitreous.lab.claims.detection_loss:match",
        lambda original: lambda logits, boxes, classes, truth: torch.arange(classes.shape[1]).expand_as(classes),
    ),
    Mutation(
        "detection_loss",
        "the right condition is the one at the prediction's index too",
        "vitreous.lab.claims.detection_loss:of_the_target",
        lambda original: lambda matched, logits: matched < 3,
    ),
    Mutation(
        "gelu",
        "the sigmoid approximation in the MLP",
        "torch.nn:GELU.forward",
        lambda original: lambda self, x: x * torch.sigmoid(1.702 * x),
    ),
    Mutation(
        "truncated_normal",
        "bounds that cut at two deviations",
        "vitreous.lab.claims.truncated_normal:trunc_normal_",
        lambda original: lambda tensor, std: torch.nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std),
    ),
]
