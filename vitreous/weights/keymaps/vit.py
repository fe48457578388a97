"""Key maps for ViT, DeiT and DINOv2 weights of timm, transformers, torchvision and the original repositories.

``google.py`` has the names of Google's JAX code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.models.vit import ViTConfig
from vitreous.weights.keymaps import KeyMap, Translation
from vitreous.weights.keymaps.google import GOOGLE

#: The original DeiT and DINOv2 have timm's names, except for registers and the gated MLP.
TIMM = KeyMap(
    "timm, DeiT or DINOv2",
    (
        ("class_token", "cls_token"),
        ("distill_token", "dist_token"),
        ("registers", "(reg_token|register_tokens)"),
        ("position.table", "pos_embed"),
        ("stem.proj.{p}", "patch_embed.proj.{p}"),
        ("blocks.{i}.norm1.{p}", "blocks.{i}.norm1.{p}"),
        ("blocks.{i}.mixer.qkv.{p}", "blocks.{i}.attn.qkv.{p}"),
        ("blocks.{i}.mixer.proj.{p}", "blocks.{i}.attn.proj.{p}"),
        ("blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"),
        ("blocks.{i}.norm2.{p}", "blocks.{i}.norm2.{p}"),
        ("blocks.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.(fc1|w12).{p}"),
        ("blocks.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.(fc2|w3).{p}"),
        ("blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"),
        ("norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
        ("distill_head.{p}", "head_dist.{p}"),
    ),
    unused=("mask_token",),
)

TORCHVISION = KeyMap(
    "torchvision",
    (
        ("class_token", "class_token"),
        ("position.table", "encoder.pos_embedding"),
        ("stem.proj.{p}", "conv_proj.{p}"),
        ("blocks.{i}.norm1.{p}", "encoder.layers.encoder_layer_{i}.ln_1.{p}"),
        ("blocks.{i}.mixer.qkv.{p}", "encoder.layers.encoder_layer_{i}.self_attention.in_proj_{p}"),
        ("blocks.{i}.mixer.proj.{p}", "encoder.layers.encoder_layer_{i}.self_attention.out_proj.{p}"),
        ("blocks.{i}.norm2.{p}", "encoder.layers.encoder_layer_{i}.ln_2.{p}"),
        ("blocks.{i}.mlp.fc1.{p}", "encoder.layers.encoder_layer_{i}.mlp.(0|linear_1).{p}"),
        ("blocks.{i}.mlp.fc2.{p}", "encoder.layers.encoder_layer_{i}.mlp.(3|linear_2).{p}"),
        ("norm.{p}", "encoder.ln.{p}"),
        ("head.{p}", "heads.head.{p}"),
    ),
)


@dataclass(frozen=True)
class TransformersKeyMap(KeyMap):
    """Key map that turns DeiT's distillation token, if it has no head, into a register that includes its position."""

    distilled: bool = False

    def translate(self, foreign: Mapping[str, Tensor]) -> Translation:
        result = super().translate(foreign)
        token, table = (result.tensors.get(name) for name in ("distill_token", "position.table"))
        if self.distilled or token is None or table is None or table.ndim != 3 or table.shape[1] < 2:
            return result
        result.tensors["registers"] = result.tensors.pop("distill_token") + table[:, 1:2]
        result.origin["registers"] = result.origin.pop("distill_token")
        result.tensors["position.table"] = torch.cat([table[:, :1], table[:, 2:]], dim=1)
        return result


LAYER = "(layers|encoder.layer).{i}"
#: Version 5 renamed the parts inside a layer; files on the Hub use the names of version 4.
TRANSFORMERS = TransformersKeyMap(
    "transformers",
    (
        ("class_token", "embeddings.cls_token"),
        ("distill_token", "embeddings.distillation_token"),
        ("registers", "embeddings.register_tokens"),
        ("position.table", "embeddings.position_embeddings"),
        ("stem.proj.{p}", "embeddings.patch_embeddings.projection.{p}"),
        ("blocks.{i}.norm1.{p}", f"{LAYER}.(norm1|layernorm_before).{{p}}"),
        ("blocks.{i}.mixer.qkv.{p}", tuple(f"{LAYER}.attention.{part}_proj.{{p}}" for part in "qkv")),
        (
            "blocks.{i}.mixer.qkv.{p}",
            tuple(f"{LAYER}.attention.attention.{part}.{{p}}" for part in ("query", "key", "value")),
        ),
        ("blocks.{i}.mixer.proj.{p}", f"{LAYER}.attention.(o_proj|output.dense).{{p}}"),
        ("blocks.{i}.scale1.gamma", f"{LAYER}.layer_scale1.lambda1"),
        ("blocks.{i}.norm2.{p}", f"{LAYER}.(norm2|layernorm_after).{{p}}"),
        ("blocks.{i}.mlp.fc1.{p}", f"{LAYER}.(mlp.fc1|mlp.weights_in|intermediate.dense).{{p}}"),
        ("blocks.{i}.mlp.fc1.{p}", (f"{LAYER}.mlp.gate_proj.{{p}}", f"{LAYER}.mlp.up_proj.{{p}}")),
        ("blocks.{i}.mlp.fc2.{p}", f"{LAYER}.(mlp.fc2|mlp.weights_out|mlp.down_proj|output.dense).{{p}}"),
        ("blocks.{i}.scale2.gamma", f"{LAYER}.layer_scale2.lambda1"),
        ("norm.{p}", "layernorm.{p}"),
        ("head.{p}", "(classifier|cls_classifier).{p}"),
        ("distill_head.{p}", "distillation_classifier.{p}"),
    ),
    unused=("pooler.dense.{p}", "embeddings.mask_token"),
)


def keymaps(config: ViTConfig) -> tuple[KeyMap, ...]:
    """Return the key maps; timm names the final norm ``fc_norm`` if it follows pooling."""
    names = tuple((native, "fc_norm.{p}" if native == "norm.{p}" else foreign) for native, foreign in TIMM.names)
    timm = replace(TIMM, names=names) if config.final_norm == "pooled" else TIMM
    return timm, TORCHVISION, replace(TRANSFORMERS, distilled=config.distilled), GOOGLE
