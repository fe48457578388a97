"""EfficientFormer as timm, the authors' repository and transformers name it.

In the last stage, where maps become tokens, the first two count that step as a block, and transformers counts the
blocks before it and behind it apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.efficientformer import EfficientFormerConfig
from vitreous.weights.keymaps import KeyMap, Names, below

#: Blocks on maps have some of these, blocks on tokens have all.
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
class DistanceKeyMap(KeyMap):
    """Their tables of biases have a row for each head, ours one for each distance."""

    def as_ours(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2) if name.endswith(".relative.table") and tensor.ndim == 3 else tensor


def stem_names(conv1: str, norm1: str, conv2: str, norm2: str) -> Names:
    parts = {"conv1": conv1, "norm1": norm1, "conv2": conv2, "norm2": norm2}
    return tuple((f"stages.0.downsample.{ours}.{{rest}}", f"{theirs}.{{rest}}") for ours, theirs in parts.items())


def step_names(stage: int, theirs: str, conv: str) -> Names:
    """The step before a stage."""
    return below(f"stages.{stage}.downsample", theirs, (("conv.{p}", f"{conv}.{{p}}"), ("norm.{rest}", "norm.{rest}")))


def last_blocks(config: EfficientFormerConfig, theirs: str, names: Names, *, first: int) -> Names:
    """The blocks on tokens, which they count from ``first``."""
    last, start, end = len(config.depths) - 1, config.num_final_pool_blocks, config.depths[-1]
    return tuple(
        pair
        for index in range(start, end)
        for pair in below(f"stages.{last}.blocks.{index}", f"{theirs}.{index - start + first}", names)
    )


def keymap(config: EfficientFormerConfig, source: str, names: Names, *, distill_head: str) -> KeyMap:
    """A file's second head is left alone by a model that has one."""
    unused = [r"\S+.token_mixer.attention_bias_idxs"]
    if config.distilled:
        names += (("distill_head.{p}", f"{distill_head}.{{p}}"),)
    else:
        unused.append(f"{distill_head}.{{p}}")
    return DistanceKeyMap(source, names, unused=tuple(unused))


def timm(config: EfficientFormerConfig) -> KeyMap:
    last, first = len(config.depths) - 1, config.num_final_pool_blocks + 1
    names = (
        *stem_names("stem.conv1", "stem.norm1", "stem.conv2", "stem.norm2"),
        *last_blocks(config, f"stages.{last}.blocks", BLOCK, first=first),
        *below("stages.{i}.blocks.{j}", "stages.{i}.blocks.{j}", BLOCK),
        ("stages.{i}.downsample.{rest}", "stages.{i}.downsample.{rest}"),
        ("norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
    )
    return keymap(config, "timm", names, distill_head="head_dist")


def original(config: EfficientFormerConfig) -> KeyMap:
    """Stages and the steps between them in one row."""
    num_stages, first = len(config.depths), config.num_final_pool_blocks + 1
    names = stem_names("patch_embed.0", "patch_embed.1", "patch_embed.3", "patch_embed.4")
    names += last_blocks(config, f"network.{2 * num_stages - 2}", BLOCK, first=first)
    for stage in range(num_stages):
        names += below(f"stages.{stage}.blocks.{{i}}", f"network.{2 * stage}.{{i}}", BLOCK)
    for stage in range(1, num_stages):
        names += step_names(stage, f"network.{2 * stage - 1}", "proj")
    names += (("norm.{p}", "norm.{p}"), ("head.{p}", "head.{p}"))
    return keymap(config, "the original EfficientFormer", names, distill_head="dist_head")


def transformers(config: EfficientFormerConfig) -> KeyMap:
    last, stem = len(config.depths) - 1, "patch_embed"
    names = stem_names(
        f"{stem}.convolution1", f"{stem}.batchnorm_before", f"{stem}.convolution2", f"{stem}.batchnorm_after"
    )
    names += last_blocks(config, "encoder.last_stage.meta3D_layers.blocks", TRANSFORMERS_BLOCK, first=0)
    for stage in range(last + 1):
        place = f"intermediate_stages.{2 * stage}" if stage < last else "last_stage"
        theirs = f"encoder.{place}.meta4D_layers.blocks.{{i}}"
        names += below(f"stages.{stage}.blocks.{{i}}", theirs, TRANSFORMERS_BLOCK)
    for stage in range(1, last + 1):
        names += step_names(stage, f"encoder.intermediate_stages.{2 * stage - 1}", "projection")
    names += (("norm.{p}", "layernorm.{p}"), ("head.{p}", "classifier.{p}"))
    return keymap(config, "transformers", names, distill_head="distillation_classifier")


def keymaps(config: EfficientFormerConfig) -> tuple[KeyMap, ...]:
    return timm(config), original(config), transformers(config)
