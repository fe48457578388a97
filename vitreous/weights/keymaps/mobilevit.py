"""Key maps for MobileViT weights of timm, transformers and the original repository (ml-cvnets).

The weights published by transformers and ml-cvnets were trained on BGR images.
"""

from __future__ import annotations

from vitreous.models.mobilevit import NUM_STAGES, MobileViTConfig
from vitreous.weights.keymaps import KeyMap, Name

TableRow = tuple[str, Name, Name, Name]
NamePairs = tuple[tuple[str, str], ...]

#: The columns of all tables are the names of Vitreous, timm, transformers and ml-cvnets. The first three tables hold
#: convolutions with a norm: outside the stages, in an inverted residual and in a MobileViT block. The last two hold
#: all other layers: in a MobileViT block and in each of its transformer layers.
OUTER: tuple[TableRow, ...] = (
    ("stem", "stem", "conv_stem", "conv_1"),
    ("final", "final_conv", "conv_1x1_exp", "conv_1x1_exp"),
)
RESIDUAL: tuple[TableRow, ...] = (
    ("expand", "conv1_1x1", "expand_1x1", "block.exp_1x1"),
    ("depthwise", "conv2_kxk", "conv_3x3", "block.conv_3x3"),
    ("project", "conv3_1x1", "reduce_1x1", "block.red_1x1"),
)
BLOCK_CONVS: tuple[TableRow, ...] = (
    ("local", "conv_kxk", "conv_kxk", "local_rep.conv_3x3"),
    ("narrow", "conv_proj", "conv_projection", "conv_proj"),
    ("fuse", "conv_fusion", "fusion", "fusion"),
)
BLOCK_LAYERS: tuple[TableRow, ...] = (
    ("widen", "conv_1x1", "conv_1x1.convolution", "local_rep.conv_1x1.block.conv"),
    ("norm", "norm", "layernorm", r"global_rep.\d+"),
)
TRANSFORMER_LAYER: tuple[TableRow, ...] = (
    ("norm1", "norm1", "layernorm_before", "pre_norm_mha.0"),
    (
        "mixer.qkv",
        "attn.qkv",
        tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
        "pre_norm_mha.1.qkv_proj",
    ),
    ("mixer.proj", "attn.proj", "attention.output.dense", "pre_norm_mha.1.out_proj"),
    ("norm2", "norm2", "layernorm_after", "pre_norm_ffn.0"),
    ("mlp.fc1", "mlp.fc1", "intermediate.dense", "pre_norm_ffn.1"),
    ("mlp.fc2", "mlp.fc2", "output.dense", "pre_norm_ffn.4"),
)


def add_affixes(prefix: str, name: Name, suffix: str) -> Name:
    return f"{prefix}{name}{suffix}" if isinstance(name, str) else tuple(f"{prefix}{part}{suffix}" for part in name)


def keymap(
    source: str,
    column: int,
    *,
    conv: str,  # foreign names of a convolution and of the norm after it
    norm: str,
    residuals: NamePairs,  # (native path, foreign path) of inverted residuals
    blocks: NamePairs,  # and of MobileViT blocks
    layers: str,  # foreign path of a transformer layer within a block
    head: str,
) -> KeyMap:
    """Build the key map of the library in the given column of the tables."""
    names: list[tuple[str, Name]] = [("head.{p}", f"{head}.{{p}}")]

    def add(table: tuple[TableRow, ...], native_prefix: str, foreign_prefix: str, parameters: NamePairs) -> None:
        for row in table:
            names.extend(
                (f"{native_prefix}{row[0]}.{native}", add_affixes(foreign_prefix, row[column], f".{foreign}"))
                for native, foreign in parameters
            )

    weights, with_norm = (("{p}", "{p}"),), (("conv.weight", f"{conv}.weight"), ("norm.{rest}", f"{norm}.{{rest}}"))
    add(OUTER, "", "", with_norm)
    for native, foreign in residuals:
        add(RESIDUAL, f"{native}.", f"{foreign}.", with_norm)
    for native, foreign in blocks:
        add(BLOCK_CONVS, f"{native}.", f"{foreign}.", with_norm)
        add(BLOCK_LAYERS, f"{native}.", f"{foreign}.", weights)
        add(TRANSFORMER_LAYER, f"{native}.blocks.{{j}}.", f"{foreign}.{layers}.", weights)
    return KeyMap(source, tuple(names))


TIMM = keymap(
    "timm",
    1,
    conv="conv",
    norm="bn",
    residuals=(("stages.{i}.{j}", "stages.{i}.{j}"),),
    blocks=(("stages.{i}.1", "stages.{i}.1"),),
    layers="transformer.{j}",
    head="head.fc",
)
TRANSFORMERS = keymap(
    "transformers",
    2,
    conv="convolution",
    norm="normalization",
    residuals=(
        ("stages.{i}.{j}", "encoder.layer.{i}.layer.{j}"),
        ("stages.{i}.0", "encoder.layer.{i}.downsampling_layer"),
    ),
    blocks=(("stages.{i}.1", "encoder.layer.{i}"),),
    layers="transformer.layer.{j}",
    head="classifier",
)
ORIGINAL = keymap(
    "ml-cvnets",
    3,
    conv="block.conv",
    norm="block.norm",
    residuals=tuple((f"stages.{stage}.{{i}}", f"layer_{stage + 1}.{{i}}") for stage in range(NUM_STAGES)),
    blocks=tuple((f"stages.{stage}.1", f"layer_{stage + 1}.1") for stage in range(NUM_STAGES)),
    layers="global_rep.{j}",
    head="classifier.fc",
)


def keymaps(config: MobileViTConfig) -> tuple[KeyMap, ...]:
    return TIMM, TRANSFORMERS, ORIGINAL
