"""Key map for ResNet weights: torchvision and timm use the same names, which are also native within a stage."""

from __future__ import annotations

from vitreous.models.resnet import WIDTHS, ResNetConfig
from vitreous.weights.keymaps import KeyMap

TORCHVISION = KeyMap(
    "torchvision or timm",
    (
        ("stem.conv.weight", "conv1.weight"),
        ("stem.norm.{rest}", "bn1.{rest}"),
        *((f"stages.{stage}.{{rest}}", f"layer{stage + 1}.{{rest}}") for stage in range(len(WIDTHS))),
        ("head.{p}", "fc.{p}"),
    ),
)


def keymaps(config: ResNetConfig) -> tuple[KeyMap, ...]:
    return (TORCHVISION,)
