"""Key maps for PVT weights of transformers and the original repository; timm does not have PVT."""

from __future__ import annotations

from vitreous.models.pvt import PVTConfig
from vitreous.weights.keymaps import KeyMap

LAYER = "encoder.block.{i}.{j}"
TRANSFORMERS = KeyMap(
    "transformers",
    (
        ("stages.{i}.class_token", "encoder.patch_embeddings.{i}.cls_token"),
        ("stages.{i}.position.table", "encoder.patch_embeddings.{i}.position_embeddings"),
        ("stages.{i}.downsample.embed.proj.{p}", "encoder.patch_embeddings.{i}.projection.{p}"),
        ("stages.{i}.downsample.norm.{p}", "encoder.patch_embeddings.{i}.layer_norm.{p}"),
        ("stages.{i}.blocks.{j}.norm1.{p}", f"{LAYER}.layer_norm_1.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.reduce.conv.{p}", f"{LAYER}.attention.self.sequence_reduction.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.reduce.norm.{p}", f"{LAYER}.attention.self.layer_norm.{{p}}"),
        ("stages.{i}.blocks.{j}.mixer.attention.q.{p}", f"{LAYER}.attention.self.query.{{p}}"),
        (
            "stages.{i}.blocks.{j}.mixer.attention.kv.{p}",
            (f"{LAYER}.attention.self.key.{{p}}", f"{LAYER}.attention.self.value.{{p}}"),
        ),
        ("stages.{i}.blocks.{j}.mixer.attention.proj.{p}", f"{LAYER}.attention.output.dense.{{p}}"),
        ("stages.{i}.blocks.{j}.norm2.{p}", f"{LAYER}.layer_norm_2.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.fc1.{p}", f"{LAYER}.mlp.dense1.{{p}}"),
        ("stages.{i}.blocks.{j}.mlp.fc2.{p}", f"{LAYER}.mlp.dense2.{{p}}"),
        ("norm.{p}", "encoder.layer_norm.{p}"),
        ("head.{p}", "classifier.{p}"),
    ),
)

#: The original numbers stages from 1: S is the native stage number, N = S + 1 the foreign one.
STAGE = (
    ("stages.S.position.table", "pos_embedN"),
    ("stages.S.downsample.embed.proj.{p}", "patch_embedN.proj.{p}"),
    ("stages.S.downsample.norm.{p}", "patch_embedN.norm.{p}"),
    ("stages.S.blocks.{i}.norm1.{p}", "blockN.{i}.norm1.{p}"),
    ("stages.S.blocks.{i}.mixer.reduce.conv.{p}", "blockN.{i}.attn.sr.{p}"),
    ("stages.S.blocks.{i}.mixer.reduce.norm.{p}", "blockN.{i}.attn.norm.{p}"),
    ("stages.S.blocks.{i}.mixer.attention.{part}.{p}", "blockN.{i}.attn.(?P<part>q|kv|proj).{p}"),
    ("stages.S.blocks.{i}.norm2.{p}", "blockN.{i}.norm2.{p}"),
    ("stages.S.blocks.{i}.mlp.{part}.{p}", "blockN.{i}.mlp.(?P<part>fc1|fc2).{p}"),
)


def repeat_for_stages(names: tuple[tuple[str, str], ...], num_stages: int) -> tuple[tuple[str, str], ...]:
    """Repeat the names of one stage for all stages."""
    return tuple(
        (native.replace("S", str(stage)), foreign.replace("N", str(stage + 1)))
        for stage in range(num_stages)
        for native, foreign in names
    )


def keymaps(config: PVTConfig) -> tuple[KeyMap, ...]:
    num_stages = len(config.dims)
    original = KeyMap(
        "PVT",
        (
            *repeat_for_stages(STAGE, num_stages),
            (f"stages.{num_stages - 1}.class_token", "cls_token"),
            ("norm.{p}", "norm.{p}"),
            ("head.{p}", "head.{p}"),
        ),
    )
    return TRANSFORMERS, original
