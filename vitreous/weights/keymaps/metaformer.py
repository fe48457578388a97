"""Key maps for MetaFormer weights of timm, transformers and the repositories of both papers.

PoolFormer's repository numbers stages and downsampling layers in one sequence, that of MetaFormer Baselines in two. For
feature maps, PoolFormer's and timm store linear layers as 1×1 convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.metaformer import MetaFormerConfig
from vitreous.weights.keymaps import KeyMap, Names, add_prefixes

NATIVE_BLOCK = "stages.{i}.blocks.{j}"

BLOCK: Names = (
    ("norm{side}.{p}", "norm(?P<side>1|2).{p}"),
    ("scale{side}.gamma", "layer_scale(?P<side>1|2).scale"),
    ("scale{side}.gamma", "layer_scale_(?P<side>1|2)"),
    ("keep{side}.gamma", "res_scale(?P<side>1|2).scale"),
    ("mixer.{part}.{p}", "token_mixer.(?P<part>qkv|proj).{p}"),
    ("mixer.expand.weight", "token_mixer.pwconv1.weight"),
    ("mixer.act.{part}", "token_mixer.act1.(?P<part>scale|bias)"),
    ("mixer.depthwise.weight", "token_mixer.dwconv.weight"),
    ("mixer.project.weight", "token_mixer.pwconv2.weight"),
    ("mlp.{rest}", "mlp.{rest}"),
)
TRANSFORMERS_BLOCK: Names = (
    ("norm1.{p}", "before_norm.{p}"),
    ("scale{side}.gamma", "layer_scale_(?P<side>1|2)"),
    ("norm2.{p}", "after_norm.{p}"),
    ("mlp.fc{side}.{p}", "output.conv(?P<side>1|2).{p}"),
)


@dataclass(frozen=True)
class FlatConvKeyMap(KeyMap):
    """Key map that flattens 1×1 convolutions to matrices."""

    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.flatten(1) if tensor.shape[2:] == (1, 1) and "depthwise" not in name else tensor


def timm() -> KeyMap:
    """Return the key map of timm, whose final norm always follows pooling, even where the paper has it before."""
    names = (
        ("stages.0.downsample.{rest}", "stem.{rest}"),
        ("stages.{i}.downsample.{rest}", "stages.{i}.downsample.{rest}"),
        *add_prefixes(NATIVE_BLOCK, "stages.{i}.blocks.{j}", BLOCK),
        ("pooled_norm.{p}", "head.norm.{p}"),
        ("head.{part}.{p}", "head.fc.(?P<part>fc1|norm).{p}"),
        ("head.{p}", "head.fc.(fc2.)?{p}"),
    )
    return FlatConvKeyMap("timm", names, options=(("final_norm", "pooled"),))


def baselines(norm: str) -> KeyMap:
    names = (
        ("stages.{i}.downsample.conv.{p}", "downsample_layers.{i}.conv.{p}"),
        ("stages.{i}.downsample.norm.{p}", "downsample_layers.{i}.(pre_norm|post_norm).{p}"),
        *add_prefixes(NATIVE_BLOCK, "stages.{i}.{j}", BLOCK),
        (f"{norm}.{{p}}", "norm.{p}"),
        ("head.{part}.{p}", "head.(?P<part>fc1|norm).{p}"),
        ("head.{p}", "head.(fc2.)?{p}"),
    )
    return FlatConvKeyMap("MetaFormer Baselines", names)


def poolformer(norm: str, num_stages: int) -> KeyMap:
    names = [("stages.0.downsample.conv.{p}", "patch_embed.proj.{p}")]
    for stage in range(num_stages):
        names += add_prefixes(f"stages.{stage}.blocks.{{j}}", f"network.{2 * stage}.{{j}}", BLOCK)
    for stage in range(1, num_stages):
        names += [(f"stages.{stage}.downsample.conv.{{p}}", f"network.{2 * stage - 1}.proj.{{p}}")]
    names += [(f"{norm}.{{p}}", "norm.{p}"), ("head.{p}", "head.{p}")]
    return FlatConvKeyMap("PoolFormer", tuple(names))


def transformers(norm: str) -> KeyMap:
    names = (
        ("stages.{i}.downsample.conv.{p}", "encoder.patch_embeddings.{i}.projection.{p}"),
        *add_prefixes(NATIVE_BLOCK, "encoder.block.{i}.{j}", TRANSFORMERS_BLOCK),
        (f"{norm}.{{p}}", "norm.{p}"),
        ("head.{p}", "classifier.{p}"),
    )
    return FlatConvKeyMap("transformers", names)


def keymaps(config: MetaFormerConfig) -> tuple[KeyMap, ...]:
    norm = "norm" if config.final_norm == "tokens" else "pooled_norm"
    return timm(), baselines(norm), poolformer(norm, len(config.dims)), transformers(norm)
