"""ResNet as torchvision and timm name it: both alike, and alike below the stages with ours, whose layers they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vitreous.models.resnet import WIDTHS, ResNetConfig
from vitreous.weights.keymaps import KeyMap, Translation

REST = r"(?P<rest>\S+)"  # the remainder of a name, which is the same on both sides


class BatchNormKeyMap(KeyMap):
    """Older files do not say how many batches BatchNorm's statistics saw, and nothing computed depends on it: 0."""

    def translate(self, theirs: Mapping[str, Tensor]) -> Translation:
        result = super().translate(theirs)
        for name in list(result.tensors):
            norm, _, part = name.rpartition(".")
            if part == "running_var":
                result.tensors.setdefault(f"{norm}.num_batches_tracked", torch.tensor(0))
        return result


TORCHVISION = BatchNormKeyMap(
    "torchvision or timm",
    (
        ("stem.conv.weight", "conv1.weight"),
        ("stem.norm.{rest}", f"bn1.{REST}"),
        *((f"stages.{stage}.{{rest}}", f"layer{stage + 1}.{REST}") for stage in range(len(WIDTHS))),
        ("head.{p}", "fc.{p}"),
    ),
    prefix=r"module\.|backbone\.",
)


def keymaps(config: ResNetConfig) -> tuple[KeyMap, ...]:
    return (TORCHVISION,)
