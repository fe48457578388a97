"""Key maps for FastViT weights of timm and the original repository, with all branches or re-parameterized.

The original numbers stages, downsampling layers and position encodings in one sequence, ``network``. Both store layer
scale γ with the axes of a feature map.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.fastvit import FastViTConfig
from vitreous.weights.keymaps import KeyMap, Names

#: A MobileOne block: a sum of branches, or the single convolution that replaces it when re-parameterized.
REPARAM: Names = (
    (".branches.0.conv.weight", ".(conv_kxk|rbr_conv).0.conv.weight"),
    (".branches.0.norm.{rest}", ".(conv_kxk|rbr_conv).0.bn.{rest}"),
    (".branches.1.conv.weight", ".(conv_scale|rbr_scale).conv.weight"),
    (".branches.1.norm.{rest}", ".(conv_scale|rbr_scale).bn.{rest}"),
    (".identity.{rest}", ".(identity|rbr_skip).{rest}"),
    (".{p}", ".reparam_conv.{p}"),
)
LARGE_KERNEL: Names = (
    (".branches.0.conv.weight", ".(large_conv|lkb_origin).conv.weight"),
    (".branches.0.norm.{rest}", ".(large_conv|lkb_origin).bn.{rest}"),
    (".branches.1.conv.weight", ".small_conv.conv.weight"),
    (".branches.1.norm.{rest}", ".small_conv.bn.{rest}"),
    (".{p}", ".(reparam_conv|lkb_reparam).{p}"),
)


def prefix_parts(native_prefix: str, foreign_prefix: str, names: Names) -> Names:
    return tuple((f"{native_prefix}{native}", f"{foreign_prefix}{foreign}") for native, foreign in names)


BLOCK: Names = (
    *prefix_parts(".mixer.conv", ".token_mixer.mixer", REPARAM),
    (".mixer.norm.{rest}", ".token_mixer.norm.(identity|rbr_skip).{rest}"),
    (".mixer.scale.gamma", ".token_mixer.layer_scale(.gamma)?"),
    (".mixer.{p}", ".token_mixer.reparam_conv.{p}"),
    (".norm.{rest}", ".norm.{rest}"),
    (".mixer.qkv.{p}", ".token_mixer.qkv.{p}"),
    (".mixer.proj.{p}", ".token_mixer.proj.{p}"),
    (".scale.gamma", ".layer_scale(.gamma)?"),
    (".scale1.gamma", ".layer_scale_1(.gamma)?"),
    (".scale2.gamma", ".layer_scale_2(.gamma)?"),
    (".mlp.conv.conv.weight", ".(mlp|convffn).conv.conv.weight"),
    (".mlp.conv.norm.{rest}", ".(mlp|convffn).conv.bn.{rest}"),
    (".mlp.fc1.{p}", ".(mlp|convffn).fc1.{p}"),
    (".mlp.fc2.{p}", ".(mlp|convffn).fc2.{p}"),
)
OUTER: Names = (
    *prefix_parts("stem.{i}.conv", "(stem|patch_embed).{i}", REPARAM),
    *prefix_parts("expand.conv", "(final_conv|conv_exp)", REPARAM),
    ("expand.squeeze.fc1.{p}", "(final_conv|conv_exp).se.(fc1|reduce).{p}"),
    ("expand.squeeze.fc2.{p}", "(final_conv|conv_exp).se.(fc2|expand).{p}"),
    ("head.{p}", "head(.fc)?.{p}"),
)


def stage_names(stage: int, *, downsample: str, position: str, blocks: str) -> Names:
    """Return the names of a stage, given the foreign names of its parts."""
    native = f"stages.{stage}"
    return (
        *prefix_parts(f"{native}.downsample.depthwise", f"{downsample}.proj.0", LARGE_KERNEL),
        *prefix_parts(f"{native}.downsample.pointwise", f"{downsample}.proj.1", REPARAM),
        (f"{native}.position.conv.{{p}}", f"{position}.(pos_enc|pe).{{p}}"),
        (f"{native}.position.{{p}}", f"{position}.reparam_conv.{{p}}"),
        *prefix_parts(f"{native}.blocks.{{i}}", f"{blocks}.{{i}}", BLOCK),
    )


@dataclass(frozen=True)
class FlatScaleKeyMap(KeyMap):
    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.flatten() if name.endswith(".gamma") else tensor


def timm(num_stages: int) -> KeyMap:
    names = list(OUTER)
    for stage in range(num_stages):
        foreign = f"stages.{stage}"
        names += stage_names(
            stage, downsample=f"{foreign}.downsample", position=f"{foreign}.pos_emb", blocks=f"{foreign}.blocks"
        )
    return FlatScaleKeyMap("timm", tuple(names))


def original(config: FastViTConfig) -> KeyMap:
    names, number = list(OUTER), 0
    for stage in range(len(config.dims)):
        position = number + (stage > 0)
        blocks = position + config.has_attention(stage)
        parts = {"downsample": number, "position": position, "blocks": blocks}
        names += stage_names(stage, **{part: f"network.{index}" for part, index in parts.items()})
        number = blocks + 1
    return FlatScaleKeyMap("the original FastViT", tuple(names))


def keymaps(config: FastViTConfig) -> tuple[KeyMap, ...]:
    return timm(len(config.dims)), original(config)
