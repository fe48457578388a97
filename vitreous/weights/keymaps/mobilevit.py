"""MobileViT as timm, transformers and the authors' repository (ml-cvnets) name it.

The weights that transformers and the authors publish were trained on images with blue first and red last.
"""

from __future__ import annotations

from vitreous.models.mobilevit import NUM_STAGES, MobileViTConfig
from vitreous.weights.keymaps import KeyMap, Name

Row = tuple[str, Name, Name, Name]
Pairs = tuple[tuple[str, str], ...]

#: Every table: our name, timm's, transformers', the authors'. First convolutions with a norm, outside the stages, in an
#: inverted residual and in a MobileViT block; then what has weights alone, in a block and in each layer of it.
ENDS: tuple[Row, ...] = (
    ("stem", "stem", "conv_stem", "conv_1"),
    ("final", "final_conv", "conv_1x1_exp", "conv_1x1_exp"),
)
RESIDUAL: tuple[Row, ...] = (
    ("expand", "conv1_1x1", "expand_1x1", "block.exp_1x1"),
    ("depthwise", "conv2_kxk", "conv_3x3", "block.conv_3x3"),
    ("project", "conv3_1x1", "reduce_1x1", "block.red_1x1"),
)
BLOCK: tuple[Row, ...] = (
    ("local", "conv_kxk", "conv_kxk", "local_rep.conv_3x3"),
    ("narrow", "conv_proj", "conv_projection", "conv_proj"),
    ("fuse", "conv_fusion", "fusion", "fusion"),
)
INSIDE: tuple[Row, ...] = (
    ("widen", "conv_1x1", "conv_1x1.convolution", "local_rep.conv_1x1.block.conv"),
    ("norm", "norm", "layernorm", r"global_rep.\d+"),
)
LAYER: tuple[Row, ...] = (
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


def around(before: str, name: Name, after: str) -> Name:
    return f"{before}{name}{after}" if isinstance(name, str) else tuple(f"{before}{part}{after}" for part in name)


def keymap(
    source: str,
    column: int,
    *,
    conv: str,  # what they call a convolution, and the norm behind it
    norm: str,
    residuals: Pairs,  # our path and theirs to every inverted residual, and to every MobileViT block
    blocks: Pairs,
    layers: str,  # their path in a block to a layer
    head: str,
) -> KeyMap:
    """The map for the library in one column of the tables."""
    names: list[tuple[str, Name]] = [("head.{p}", f"{head}.{{p}}")]

    def add(table: tuple[Row, ...], ours: str, theirs: str, ends: Pairs) -> None:
        for row in table:
            names.extend((f"{ours}{row[0]}.{mine}", around(theirs, row[column], f".{other}")) for mine, other in ends)

    weights, with_norm = (("{p}", "{p}"),), (("conv.weight", f"{conv}.weight"), ("norm.{rest}", f"{norm}.{{rest}}"))
    add(ENDS, "", "", with_norm)
    for ours, theirs in residuals:
        add(RESIDUAL, f"{ours}.", f"{theirs}.", with_norm)
    for ours, theirs in blocks:
        add(BLOCK, f"{ours}.", f"{theirs}.", with_norm)
        add(INSIDE, f"{ours}.", f"{theirs}.", weights)
        add(LAYER, f"{ours}.blocks.{{j}}.", f"{theirs}.{layers}.", weights)
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
AUTHORS = keymap(
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
    return TIMM, TRANSFORMERS, AUTHORS
