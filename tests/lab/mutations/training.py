"""Mutations for claims about norms, regularization, schedules and losses."""

import math

import torch
import torch.nn.functional as F

from tests.lab.mutations.base import Mutation
from vitreous.data import mixing
from vitreous.samples import Classes


def eps_beside_root(self, x):
    """LayerNorm with ε added to the standard deviation."""
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, correction=0)
    return (x - mean) / (deviation + self.eps)


def unbiased(self, x):
    return (x - x.mean((1, 2), keepdim=True)) / (x.var((1, 2), keepdim=True) + self.eps).sqrt()


def without_rescaling(self, x):
    """DropPath that does not rescale the kept branches."""
    keep = x.new_empty(x.shape[:1] + (1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)
    return x * keep if self.training else x


def one_draw(self, x):
    return x * (torch.rand(()) >= self.rate) / (1 - self.rate) if self.training else x


def one_weight(augment, size, draws):
    """MixUp's weights with the α of CutMix."""
    return draws.beta("cutmix", augment.cutmix, 1)[:, :, None]


def label_as_drawn(original):
    """CutMix whose label keeps the sampled λ, although the box was clipped at the border."""

    def mix(images, targets, augment, draws):
        mixed, _ = original(images, targets, augment, draws)
        share = torch.from_numpy(draws.beta("cutmix", 1.0, 1))
        partner = torch.from_numpy(mixing.partners(len(images)))
        values = share * targets.values + (1 - share) * targets.values[partner]
        return mixed, Classes(values)

    return mix


def scale_bias(original):
    """Attention that divides the bias by √d as well."""

    def forward(self, q, k, v, *, bias=None, **options):
        return original(self, q, k, v, bias=None if bias is None else bias * self.scale(q), **options)

    return forward


def without_squared_temperature(student_logits, teacher_logits, task):
    student, teacher = ((logits / task.temperature).log_softmax(dim=1) for logits in (student_logits, teacher_logits))
    return F.kl_div(student, teacher, log_target=True, reduction="batchmean")


def class_head_alone(heads):
    return heads["class"]


MUTATIONS = [
    Mutation(
        "layer_norm",
        "ε is added to the deviation, not to the variance",
        "torch.nn:LayerNorm.forward",
        lambda original: eps_beside_root,
    ),
    Mutation(
        "layer_norm",
        "the variance is divided by one less than the number of values",
        "vitreous.layers.norm:ImageNorm.forward",
        lambda original: unbiased,
    ),
    Mutation(
        "drop_path",
        "kept branches are not rescaled",
        "vitreous.layers.drop:DropPath.forward",
        lambda original: without_rescaling,
    ),
    Mutation(
        "drop_path",
        "one draw for the whole batch",
        "vitreous.layers.drop:DropPath.forward",
        lambda original: one_draw,
    ),
    Mutation(
        "cutmix",
        "MixUp instead of CutMix",
        "vitreous.data.mixing:MIXERS",
        lambda original: {**original, "cutmix": one_weight},
    ),
    Mutation(
        "cutmix",
        "the label keeps the sampled λ",
        "vitreous.lab.claims.cutmix:mix",
        label_as_drawn,
    ),
    Mutation(
        "cosine_schedule",
        "a cosine that becomes negative",
        "vitreous.train.schedule:Cosine.decayed",
        lambda original: lambda self, step, total, warmup: math.cos(math.pi * (step - warmup) / (total - warmup)),
    ),
    Mutation(
        "cosine_schedule",
        "the warm-up counts as part of the decay",
        "vitreous.train.schedule:Cosine.decayed",
        lambda original: lambda self, step, total, warmup: (1 + math.cos(math.pi * step / total)) / 2,
    ),
    Mutation(
        "relative_bias",
        "the bias is divided by √d too",
        "vitreous.layers.attention:Attend.forward",
        scale_bias,
    ),
    Mutation(
        "distillation_loss",
        "the soft loss lacks its factor T²",
        "vitreous.tasks.distill:distillation_loss",
        lambda original: without_squared_temperature,
    ),
    Mutation(
        "distillation_loss",
        "only the class head predicts",
        "vitreous.models.base:mean_logits",
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
        "objects are matched to predictions by index",
        "vitreous.lab.claims.detection_loss:match",
        lambda original: lambda logits, boxes, classes, truth: torch.arange(classes.shape[1]).expand_as(classes),
    ),
    Mutation(
        "detection_loss",
        "the correct mask also uses the prediction's index",
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
        "bounds at two standard deviations",
        "vitreous.lab.claims.truncated_normal:trunc_normal_",
        lambda original: lambda tensor, std: torch.nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std),
    ),
]
