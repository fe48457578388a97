"""Key maps for EfficientFormer weights of timm, the original repository and transformers.

In the last stage, timm and the original count the step from feature maps to tokens as a block; transformers numbers the
blocks before and after it separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.efficientformer import EfficientFormerConfig
from vitreous.weights.keymaps import KeyMap, Names, add_prefixes

#: Blocks on feature maps have some of these parameters, blocks on tokens all.
BLOCK: Names = (
    ("norm1.{p}", "norm1.{p}"),
    ("mixer.{part}.{p}", "token_mixer.(?P<part>qkv|proj).{p}"),
    ("mixer.relative.table", "token_mixer.attention_biases"),
    ("scale1.gamma", "(ls1.gamma|layer_scale_1)"),
    ("norm2.{p}", "norm2.{p}"),
    ("mlp.{rest}", "mlp.{rest}"),
    ("scale2.gamma", "(ls2.gamma|layer_scale_2)"),
)
TRANSFORMERS_BLOCK: Names = (
    ("norm1.{p}", "layernorm1.{p}"),
    ("mixer.qkv.{p}", "token_mixer.qkv.{p}"),
    ("mixer.relative.table", "token_mixer.attention_biases"),
    ("mixer.proj.{p}", "token_mixer.projection.{p}"),
    ("scale1.gamma", "layer_scale_1"),
    ("norm2.{p}", "layernorm2.{p}"),
    ("mlp.fc1.{p}", "mlp.(convolution1|linear_in).{p}"),
    ("mlp.norm1.{rest}", "mlp.batchnorm_before.{rest}"),
    ("mlp.fc2.{p}", "mlp.(convolution2|linear_out).{p}"),
    ("mlp.norm2.{rest}", "mlp.batchnorm_after.{rest}"),
    ("scale2.gamma", "layer_scale_2"),
)


@dataclass(frozen=True)
class TransposedBiasKeyMap(KeyMap):
    """Key map that transposes bias tables: one row per head in the file, one row per distance in Vitreous."""

    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2) if name.endswith(".relative.table") and tensor.ndim == 3 else tensor


def stem_names(conv1: str, norm1: str, conv2: str, norm2: str) -> Names:
    parts = {"conv1": conv1, "norm1": norm1, "conv2": conv2, "norm2": norm2}
    return tuple((f"stages.0.downsample.{native}.{{rest}}", f"{foreign}.{{rest}}") for native, foreign in parts.items())


def downsample_names(stage: int, foreign: str, conv: str) -> Names:
    """Return the names of the downsampling layer of a stage."""
    names = (("conv.{p}", f"{conv}.{{p}}"), ("norm.{rest}", "norm.{rest}"))
    return add_prefixes(f"stages.{stage}.downsample", foreign, names)


def last_blocks(config: EfficientFormerConfig, foreign: str, names: Names, *, first: int) -> Names:
    """Return the names of the blocks on tokens, which the file numbers from ``first``."""
    last, start, end = len(config.depths) - 1, config.num_final_pool_blocks, config.depths[-1]
    return tuple(
        pair
        for index in range(start, end)
        for pair in add_prefixes(f"stages.{last}.blocks.{index}", f"{foreign}.{index - start + first}", names)
    )


def keymap(config: EfficientFormerConfig, source: str, names: Names, *, distill_head: str) -> KeyMap:
    """Build a key map; a model with a single head ignores the file's distillation head."""
    unused = [r"\S+.token_mixer.attention_bias_idxs"]
    if config.distilled:
        names += (("distill_head.{p}", f"{distill_head}.{{p}}"),)
    else:
        unused.append(f"{distill_head}.{{p}}")
    return TransposedBiasKeyMap(source, names, unused=tuple(unused))


def timm(config: EfficientFormerConfig) -> KeyMap:
    last, first = len(config.depths) - 1, config.num_final_pool_blocks + 1
    names = (
        *stem_names("stem.conv1", "stem.norm1", "stem.conv2", "stem.norm2"),
        *last_blocks(config, f"stages.{last}.blocks", BLOCK, first=first),
        *add_prefixes("stages.{i}.blocks.{j}", "stages.{i}.blocks.{j}", BLOCK),
        ("stages.{i}.downsample.{rest}", "stages.{i}.downsample.{rest}"),
        ("norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
    )
    return keymap(config, "timm", names, distill_head="head_dist")


def original(config: EfficientFormerConfig) -> KeyMap:
    """Return the key map of the original, which numbers stages and downsampling layers in one sequence."""
    num_stages, first = len(config.depths), config.num_final_pool_blocks + 1
    names = stem_names("patch_embed.0", "patch_embed.1", "patch_embed.3", "patch_embed.4")
    names += last_blocks(config, f"network.{2 * num_stages - 2}", BLOCK, first=first)
    for stage in range(num_stages):
        names += add_prefixes(f"stages.{stage}.blocks.{{i}}", f"network.{2 * stage}.{{i}}", BLOCK)
    for stage in range(1, num_stages):
        names += downsample_names(stage, f"network.{2 * stage - 1}", "proj")
    names += (("norm.{p}", "norm.{p}"), ("head.{p}", "head.{p}"))
    return keymap(config, "the original EfficientFormer", names, distill_head="dist_head")


def transformers(config: EfficientFormerConfig) -> KeyMap:
    last, stem = len(config.depths) - 1, "patch_embed"
    names = stem_names(
        f"{stem}.convolution1", f"{stem}.batchnorm_before", f"{stem}.convolution2", f"{stem}.batchnorm_after"
    )
    names += last_blocks(config, "encoder.last_stage.meta3D_layers.blocks", TRANSFORMERS_BLOCK, first=0)
    for stage in range(last + 1):
        stage_name = f"intermediate_stages.{2 * stage}" if stage < last else "last_stage"
        foreign = f"encoder.{stage_name}.meta4D_layers.blocks.{{i}}"
        names += add_prefixes(f"stages.{stage}.blocks.{{i}}", foreign, TRANSFORMERS_BLOCK)
    for stage in range(1, last + 1):
        names += downsample_names(stage, f"encoder.intermediate_stages.{2 * stage - 1}", "projection")
    names += (("norm.{p}", "layernorm.{p}"), ("head.{p}", "classifier.{p}"))
    return keymap(config, "transformers", names, distill_head="distillation_classifier")


def keymaps(config: EfficientFormerConfig) -> tuple[KeyMap, ...]:
    return timm(config), original(config), transformers(config)
