"""Key map for hybrid weights of timm, whose patch embedding contains a ResNet."""

from __future__ import annotations

from dataclasses import replace

from vitreous.models.hybrid import HybridConfig
from vitreous.weights.keymaps import KeyMap, vit

#: timm puts the root of the ResNet in ``stem``, unless the root is the whole ResNet.
STEM = (
    ("stem.root.{rest}", "patch_embed.backbone.(stem.)?(?=conv|norm){rest}"),
    ("stem.stages.{j}.{rest}", "patch_embed.backbone.stages.{j}.blocks.{rest}"),
    ("stem.embed.proj.{p}", "patch_embed.proj.{p}"),
)


def keymaps(config: HybridConfig) -> tuple[KeyMap, ...]:
    timm, *_ = vit.keymaps(config)
    names = tuple(pair for pair in timm.names if not pair[0].startswith("stem."))
    return (replace(timm, source="timm", names=STEM + names),)
