"""Key map for XCiT weights of timm and the original; only names of positions and class attention differ."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from vitreous.models.xcit import XCiTConfig
from vitreous.weights.keymaps import KeyMap, Translation

CLASS_QKV = re.compile(r"class_layers\.\d+\.mixer\.qkv\.")


class XCiTKeyMap(KeyMap):
    """Key map that splits the original's qkv of class attention into q and kv: only the class token has a query."""

    def translate(self, foreign: Mapping[str, Tensor]) -> Translation:
        result = super().translate(foreign)
        stacked = [name for name, tensor in result.tensors.items() if CLASS_QKV.match(name) and tensor.ndim]
        for name in stacked:
            qkv, origin = result.tensors.pop(name), result.origin.pop(name)
            third = len(qkv) // 3
            for part, rows in (("q", qkv[:third]), ("kv", qkv[third:])):
                result.tensors[name.replace("qkv", part)] = rows
                result.origin[name.replace("qkv", part)] = origin
        return result


TIMM = XCiTKeyMap(
    "timm or XCiT",
    (
        ("class_token", "cls_token"),
        ("stem.convs.{rest}", "patch_embed.proj.{rest}"),
        ("position.proj.{p}", "(pos_embed|pos_embeder).token_projection.{p}"),
        ("layers.{i}.norm1.{p}", "blocks.{i}.norm1.{p}"),
        ("layers.{i}.mixer.temperature", "blocks.{i}.attn.temperature"),
        ("layers.{i}.mixer.qkv.{p}", "blocks.{i}.attn.qkv.{p}"),
        ("layers.{i}.mixer.proj.{p}", "blocks.{i}.attn.proj.{p}"),
        ("layers.{i}.scale1.gamma", "blocks.{i}.gamma1"),
        ("layers.{i}.local_norm.{p}", "blocks.{i}.norm3.{p}"),
        ("layers.{i}.local.conv1.{p}", "blocks.{i}.local_mp.conv1.{p}"),
        ("layers.{i}.local.norm.{rest}", "blocks.{i}.local_mp.bn.{rest}"),
        ("layers.{i}.local.conv2.{p}", "blocks.{i}.local_mp.conv2.{p}"),
        ("layers.{i}.local_scale.gamma", "blocks.{i}.gamma3"),
        ("layers.{i}.norm2.{p}", "blocks.{i}.norm2.{p}"),
        ("layers.{i}.mlp.fc1.{p}", "blocks.{i}.mlp.fc1.{p}"),
        ("layers.{i}.mlp.fc2.{p}", "blocks.{i}.mlp.fc2.{p}"),
        ("layers.{i}.scale2.gamma", "blocks.{i}.gamma2"),
        ("class_layers.{i}.norm1.{p}", "cls_attn_blocks.{i}.norm1.{p}"),
        ("class_layers.{i}.mixer.q.{p}", "cls_attn_blocks.{i}.attn.q.{p}"),
        ("class_layers.{i}.mixer.kv.{p}", ("cls_attn_blocks.{i}.attn.k.{p}", "cls_attn_blocks.{i}.attn.v.{p}")),
        ("class_layers.{i}.mixer.qkv.{p}", "cls_attn_blocks.{i}.attn.qkv.{p}"),
        ("class_layers.{i}.mixer.proj.{p}", "cls_attn_blocks.{i}.attn.proj.{p}"),
        ("class_layers.{i}.scale1.gamma", "cls_attn_blocks.{i}.gamma1"),
        ("class_layers.{i}.norm2.{p}", "cls_attn_blocks.{i}.norm2.{p}"),
        ("class_layers.{i}.mlp.fc1.{p}", "cls_attn_blocks.{i}.mlp.fc1.{p}"),
        ("class_layers.{i}.mlp.fc2.{p}", "cls_attn_blocks.{i}.mlp.fc2.{p}"),
        ("class_layers.{i}.scale2.gamma", "cls_attn_blocks.{i}.gamma2"),
        ("norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
    ),
)


def keymaps(config: XCiTConfig) -> tuple[KeyMap, ...]:
    return (TIMM,)
