"""Key maps for PVT v2 weights of timm, transformers and the original repository."""

from __future__ import annotations

from vitreous.models.pvt_v2 import PVTv2Config
from vitreous.weights.keymaps import KeyMap
from vitreous.weights.keymaps.pvt import repeat_for_stages

BLOCK = "stages.{i}.blocks.{j}"
TIMM = KeyMap(
    "timm",
    (
        ("stages.0.downsample.conv.{p}", "patch_embed.proj.{p}"),
        ("stages.0.downsample.norm.{p}", "patch_embed.norm.{p}"),
        ("stages.{i}.downsample.conv.{p}", "stages.{i}.downsample.proj.{p}"),
        ("stages.{i}.downsample.norm.{p}", "stages.{i}.downsample.norm.{p}"),
        ("stages.{i}.blocks.{j}.norm1.{p}", f"{BLOCK}.norm1.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.reduce.conv.{p}", f"{BLOCK}.attn.sr.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.reduce.norm.{p}", f"{BLOCK}.attn.norm.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.attention.{part}.{p}", f"{BLOCK}.attn.(?P<part>q|kv|proj).{{p}}"),
        ("stages.{i}.blocks.{j}.norm2.{p}", f"{BLOCK}.norm2.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.conv.{p}", f"{BLOCK}.mlp.dwconv.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.{part}.{p}", f"{BLOCK}.mlp.(?P<part>fc1|fc2).{{p}}"),
        ("stages.{i}.norm.{p}", "stages.{i}.norm.{p}"),
        ("head.{p}", "head.{p}"),
    ),
)

LAYER = "encoder.layers.{i}.blocks.{j}"
TRANSFORMERS = KeyMap(
    "transformers",
    (
        ("stages.{i}.downsample.conv.{p}", "encoder.layers.{i}.patch_embedding.proj.{p}"),
        ("stages.{i}.downsample.norm.{p}", "encoder.layers.{i}.patch_embedding.layer_norm.{p}"),
        ("stages.{i}.blocks.{j}.norm1.{p}", f"{LAYER}.layer_norm_1.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.reduce.conv.{p}", f"{LAYER}.attention.spatial_reduction.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.reduce.norm.{p}", f"{LAYER}.attention.layer_norm.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.attention.q.{p}", f"{LAYER}.attention.query.{{p}}"),
        (
            "stages.{i}.blocks.{j}.mixer.attention.kv.{p}",
            (f"{LAYER}.attention.key.{{p}}", f"{LAYER}.attention.value.{{p}}"),
        ),
        ("stages.{i}.blocks.{j}.mixer.attention.proj.{p}", f"{LAYER}.attention.proj.{{p}}"),
        ("stages.{i}.blocks.{j}.norm2.{p}", f"{LAYER}.layer_norm_2.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.fc1.{p}", f"{LAYER}.mlp.dense1.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.conv.{p}", f"{LAYER}.mlp.dwconv.dwconv.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.fc2.{p}", f"{LAYER}.mlp.dense2.{{p}}"),
        ("stages.{i}.norm.{p}", "encoder.layers.{i}.layer_norm.{p}"),
        ("head.{p}", "classifier.{p}"),
    ),
)

#: The original numbers stages from 1: S is the native stage number, N = S + 1 the foreign one.
STAGE = (
    ("stages.S.downsample.conv.{p}", "patch_embedN.proj.{p}"),
    ("stages.S.downsample.norm.{p}", "patch_embedN.norm.{p}"),
    ("stages.S.blocks.{i}.norm1.{p}", "blockN.{i}.norm1.{p}"),
    ("stages.S.blocks.{i}.mixer.reduce.conv.{p}", "blockN.{i}.attn.sr.{p}"),
    ("stages.S.blocks.{i}.mixer.reduce.norm.{p}", "blockN.{i}.attn.norm.{p}"),
    ("stages.S.blocks.{i}.mixer.attention.{part}.{p}", "blockN.{i}.attn.(?P<part>q|kv|proj).{p}"),
    ("stages.S.blocks.{i}.norm2.{p}", "blockN.{i}.norm2.{p}"),
    ("stages.S.blocks.{i}.mlp.conv.{p}", "blockN.{i}.mlp.dwconv.dwconv.{p}"),
    ("stages.S.blocks.{i}.mlp.{part}.{p}", "blockN.{i}.mlp.(?P<part>fc1|fc2).{p}"),
    ("stages.S.norm.{p}", "normN.{p}"),
)


def keymaps(config: PVTv2Config) -> tuple[KeyMap, ...]:
    original = KeyMap("PVT", (*repeat_for_stages(STAGE, len(config.dims)), ("head.{p}", "head.{p}")))
    return TIMM, TRANSFORMERS, original
