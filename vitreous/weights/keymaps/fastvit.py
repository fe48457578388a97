"""FastViT as timm and the authors' repository name it, with all its branches and folded.

The authors count stages, the steps between them and the position encoding in one row, ``network``. Both keep γ with the
axes of a map.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.fastvit import FastViTConfig
from vitreous.weights.keymaps import KeyMap, Names

#: A sum of branches as MobileOne names it, or the one convolution that it folds to.
REP: Names = (
    (".branches.0.conv.weight", ".(conv_kxk|rbr_conv).0.conv.weight"),
    (".branches.0.norm.{rest}", ".(conv_kxk|rbr_conv).0.bn.{rest}"),
    (".branches.1.conv.weight", ".(conv_scale|rbr_scale).conv.weight"),
    (".branches.1.norm.{rest}", ".(conv_scale|rbr_scale).bn.{rest}"),
    (".identity.{rest}", ".(identity|rbr_skip).{rest}"),
    (".{p}", ".reparam_conv.{p}"),
)
LARGE: Names = (
    (".branches.0.conv.weight", ".(large_conv|lkb_origin).conv.weight"),
    (".branches.0.norm.{rest}", ".(large_conv|lkb_origin).bn.{rest}"),
    (".branches.1.conv.weight", ".small_conv.conv.weight"),
    (".branches.1.norm.{rest}", ".small_conv.bn.{rest}"),
    (".{p}", ".(reparam_conv|lkb_reparam).{p}"),
)


def below(ours: str, theirs: str, names: Names) -> Names:
    return tuple((f"{ours}{mine}", f"{theirs}{other}") for mine, other in names)


BLOCK: Names = (
    *below(".mixer.conv", ".token_mixer.mixer", REP),
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
ENDS: Names = (
    *below("stem.{i}.conv", "(stem|patch_embed).{i}", REP),
    *below("expand.conv", "(final_conv|conv_exp)", REP),
    ("expand.squeeze.fc1.{p}", "(final_conv|conv_exp).se.(fc1|reduce).{p}"),
    ("expand.squeeze.fc2.{p}", "(final_conv|conv_exp).se.(fc2|expand).{p}"),
    ("head.{p}", "head(.fc)?.{p}"),
)


def stage_names(stage: int, *, downsample: str, position: str, blocks: str) -> Names:
    """The names of a stage, given what they call its parts."""
    ours = f"stages.{stage}"
    return (
        *below(f"{ours}.downsample.depthwise", f"{downsample}.proj.0", LARGE),
        *below(f"{ours}.downsample.pointwise", f"{downsample}.proj.1", REP),
        (f"{ours}.position.conv.{{p}}", f"{position}.(pos_enc|pe).{{p}}"),
        (f"{ours}.position.{{p}}", f"{position}.reparam_conv.{{p}}"),
        *below(f"{ours}.blocks.{{i}}", f"{blocks}.{{i}}", BLOCK),
    )


@dataclass(frozen=True)
class MapKeyMap(KeyMap):
    def as_ours(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.flatten() if name.endswith(".gamma") else tensor


def timm(num_stages: int) -> KeyMap:
    names = list(ENDS)
    for stage in range(num_stages):
        theirs = f"stages.{stage}"
        names += stage_names(
            stage, downsample=f"{theirs}.downsample", position=f"{theirs}.pos_emb", blocks=f"{theirs}.blocks"
        )
    return MapKeyMap("timm", tuple(names))


def original(config: FastViTConfig) -> KeyMap:
    names, number = list(ENDS), 0
    for stage in range(len(config.dims)):
        position = number + (stage > 0)
        blocks = position + config.has_attention(stage)
        parts = {"downsample": number, "position": position, "blocks": blocks}
        names += stage_names(stage, **{part: f"network.{index}" for part, index in parts.items()})
        number = blocks + 1
    return MapKeyMap("the original FastViT", tuple(names))


def keymaps(config: FastViTConfig) -> tuple[KeyMap, ...]:
    return timm(len(config.dims)), original(config)
