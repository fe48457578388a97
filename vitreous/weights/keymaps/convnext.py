"""Key maps for ConvNeXt weights of timm, the original repository, torchvision and transformers.

All have the same parameters, numbered differently: torchvision has one sequence of stages and downsampling layers, the
original has two. timm stores the linear layers of its small models as 1×1 convolutions, and torchvision the layer scale
as (channels, 1, 1); both are flattened.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.convnext import ConvNeXtConfig
from vitreous.weights.keymaps import KeyMap, Names, add_prefixes

STEM: Names = (("embed.proj.{p}", "0.{p}"), ("norm.{p}", "1.{p}"))
DOWNSAMPLE: Names = (("norm.{p}", "0.{p}"), ("embed.proj.{p}", "1.{p}"))
TIMM_BLOCK: Names = (
    ("mixer.conv.{p}", "conv_dw.{p}"),
    ("norm.{p}", "norm.{p}"),
    ("mlp.fc1.{p}", "mlp.fc1.{p}"),
    ("mlp.fc2.{p}", "mlp.fc2.{p}"),
    ("scale.gamma", "gamma"),
)
#: Names of the original; transformers renamed norm and layer scale.
BLOCK: Names = (
    ("mixer.conv.{p}", "dwconv.{p}"),
    ("norm.{p}", "(norm|layernorm).{p}"),
    ("mlp.fc1.{p}", "pwconv1.{p}"),
    ("mlp.fc2.{p}", "pwconv2.{p}"),
    ("scale.gamma", "(gamma|layer_scale_parameter)"),
)
TORCHVISION_BLOCK: Names = (
    ("mixer.conv.{p}", "block.0.{p}"),
    ("norm.{p}", "block.2.{p}"),
    ("mlp.fc1.{p}", "block.3.{p}"),
    ("mlp.fc2.{p}", "block.5.{p}"),
    ("scale.gamma", "layer_scale"),
)


@dataclass(frozen=True)
class FlatteningKeyMap(KeyMap):
    """Key map that flattens 1×1 convolutions to matrices and layer scales to vectors."""

    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
        if ".mlp." in name and tensor.shape[2:] == (1, 1):
            return tensor.flatten(1)
        return tensor.flatten() if name.endswith("gamma") and tensor.shape[1:] == (1, 1) else tensor


TIMM = FlatteningKeyMap(
    "timm",
    (
        *add_prefixes("stages.0.downsample", "stem", STEM),
        *add_prefixes("stages.{i}.downsample", "stages.{i}.downsample", DOWNSAMPLE),
        *add_prefixes("stages.{i}.blocks.{j}", "stages.{i}.blocks.{j}", TIMM_BLOCK),
        ("norm.{p}", "norm_pre.{p}"),
        ("pooled_norm.{p}", "head.norm.{p}"),
        ("head.{p}", "head.fc.{p}"),
    ),
)

ORIGINAL = KeyMap(
    "the original ConvNeXt",
    (
        *add_prefixes("stages.0.downsample", "downsample_layers.0", STEM),
        *add_prefixes("stages.{i}.downsample", "downsample_layers.{i}", DOWNSAMPLE),
        *add_prefixes("stages.{i}.blocks.{j}", "stages.{i}.{j}", BLOCK),
        ("pooled_norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
    ),
)

TRANSFORMERS = KeyMap(
    "transformers",
    (
        ("stages.0.downsample.embed.proj.{p}", "embeddings.patch_embeddings.{p}"),
        ("stages.0.downsample.norm.{p}", "embeddings.layernorm.{p}"),
        *add_prefixes("stages.{i}.downsample", "encoder.stages.{i}.downsampling_layer", DOWNSAMPLE),
        *add_prefixes("stages.{i}.blocks.{j}", "encoder.stages.{i}.layers.{j}", BLOCK),
        ("pooled_norm.{p}", "layernorm.{p}"),
        ("head.{p}", "classifier.{p}"),
    ),
)


def torchvision(num_stages: int) -> KeyMap:
    """Return the key map of torchvision: ``features.0`` is the stem, odd numbers stages, even ones downsampling."""
    names = [*add_prefixes("stages.0.downsample", "features.0", STEM)]
    for stage in range(num_stages):
        names += add_prefixes(f"stages.{stage}.blocks.{{i}}", f"features.{2 * stage + 1}.{{i}}", TORCHVISION_BLOCK)
    for stage in range(1, num_stages):
        names += add_prefixes(f"stages.{stage}.downsample", f"features.{2 * stage}", DOWNSAMPLE)
    names += [("pooled_norm.{p}", "classifier.0.{p}"), ("head.{p}", "classifier.2.{p}")]
    return FlatteningKeyMap("torchvision", tuple(names))


def keymaps(config: ConvNeXtConfig) -> tuple[KeyMap, ...]:
    return TIMM, ORIGINAL, torchvision(len(config.dims)), TRANSFORMERS
