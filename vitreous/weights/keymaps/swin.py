"""Key maps for Swin weights of timm, the original repository, torchvision and transformers.

Patch merging between two stages belongs to the stage after it in timm and Vitreous, to the stage before it in the
original and transformers, and to neither in torchvision.
"""

from __future__ import annotations

from vitreous.models.swin import SwinConfig
from vitreous.weights.keymaps import KeyMap, Name

Names = tuple[tuple[str, Name], ...]

BLOCK: Names = (
    ("norm1.{p}", "norm1.{p}"),
    ("mixer.qkv.{p}", "attn.qkv.{p}"),
    ("mixer.relative.table", "attn.relative_position_bias_table"),
    ("mixer.proj.{p}", "attn.proj.{p}"),
    ("norm2.{p}", "norm2.{p}"),
    ("mlp.fc1.{p}", "mlp.(fc1|0).{p}"),
    ("mlp.fc2.{p}", "mlp.(fc2|3).{p}"),
)

#: Version 5 renamed the parts inside a block; files on the Hub use the names of version 4.
TRANSFORMERS_BLOCK: Names = (
    ("norm1.{p}", "layernorm_before.{p}"),
    ("mixer.qkv.{p}", tuple(f"attention.{part}_proj.{{p}}" for part in "qkv")),
    ("mixer.qkv.{p}", tuple(f"attention.self.{part}.{{p}}" for part in ("query", "key", "value"))),
    ("mixer.relative.table", "attention.(relative_position_bias|self).relative_position_bias_table"),
    ("mixer.proj.{p}", "attention.(o_proj|output.dense).{p}"),
    ("norm2.{p}", "layernorm_after.{p}"),
    ("mlp.fc1.{p}", "(mlp.fc1|intermediate.dense).{p}"),
    ("mlp.fc2.{p}", "(mlp.fc2|output.dense).{p}"),
)


def stage_names(stage: int, blocks: str, pairs: Names) -> Names:
    """Return the names in all blocks of a stage, given their foreign path ``blocks``."""
    return tuple(
        (f"stages.{stage}.blocks.{{i}}.{native}", add_prefix(f"{blocks}.{{i}}", foreign)) for native, foreign in pairs
    )


def add_prefix(prefix: str, name: Name) -> Name:
    return f"{prefix}.{name}" if isinstance(name, str) else tuple(f"{prefix}.{part}" for part in name)


def merge_names(stage: int, foreign: str) -> Names:
    """Return the names of the patch merging before a stage."""
    native = f"stages.{stage}.downsample"
    return (f"{native}.norm.{{p}}", f"{foreign}.norm.{{p}}"), (f"{native}.proj.weight", f"{foreign}.reduction.weight")


def stem_names(proj: str, norm: str) -> Names:
    native = "stages.0.downsample"
    return (f"{native}.embed.proj.{{p}}", f"{proj}.{{p}}"), (f"{native}.norm.{{p}}", f"{norm}.{{p}}")


def timm(num_stages: int, *, original: bool) -> KeyMap:
    names = [*stem_names("patch_embed.proj", "patch_embed.norm"), ("norm.{p}", "norm.{p}")]
    for stage in range(num_stages):
        names += stage_names(stage, f"layers.{stage}.blocks", BLOCK)
    for stage in range(1, num_stages):
        names += merge_names(stage, f"layers.{stage - original}.downsample")
    return KeyMap(
        "the original Swin" if original else "timm",
        (*names, ("head.{p}", "head.{p}" if original else "head.fc.{p}")),
        unused=(r"layers.\d+.blocks.\d+.(attn.relative_position_index|attn_mask)",),
    )


def torchvision(num_stages: int) -> KeyMap:
    """Return the key map of torchvision: ``features.0`` is the stem, odd numbers stages, even ones patch merging."""
    names = [*stem_names("features.0.0", "features.0.2"), ("norm.{p}", "norm.{p}"), ("head.{p}", "head.{p}")]
    for stage in range(num_stages):
        names += stage_names(stage, f"features.{2 * stage + 1}", BLOCK)
    for stage in range(1, num_stages):
        names += merge_names(stage, f"features.{2 * stage}")
    unused = r"features.\d+.\d+.attn.relative_position_index"
    return KeyMap("torchvision", tuple(names), unused=(unused,))


def transformers(num_stages: int) -> KeyMap:
    names = [*stem_names("embeddings.patch_embeddings.projection", "embeddings.norm")]
    for stage in range(num_stages):
        names += stage_names(stage, f"encoder.layers.{stage}.blocks", TRANSFORMERS_BLOCK)
    for stage in range(1, num_stages):
        names += merge_names(stage, f"encoder.layers.{stage - 1}.downsample")
    return KeyMap(
        "transformers",
        (*names, ("norm.{p}", "layernorm.{p}"), ("head.{p}", "classifier.{p}")),
        unused=(
            "embeddings.mask_token",
            r"encoder.layers.\d+.blocks.\d+.attention.(relative_position_bias|self).relative_position_index",
        ),
    )


def keymaps(config: SwinConfig) -> tuple[KeyMap, ...]:
    num_stages = len(config.dims)
    return (
        timm(num_stages, original=False),
        timm(num_stages, original=True),
        torchvision(num_stages),
        transformers(num_stages),
    )
