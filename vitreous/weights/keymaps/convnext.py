"""ConvNeXt as timm, the original repository, torchvision and transformers name it.

They agree on what there is and differ in where it stands: torchvision has stages and the steps between them in one row,
the original has two rows. timm keeps the matrices of its small models as convolutions of 1×1, and torchvision the
scale of a block as a map of one cell; both are flattened.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitreous.models.convnext import ConvNeXtConfig
from vitreous.weights.keymaps import KeyMap, Names, below

STEM: Names = (("embed.proj.{p}", "0.{p}"), ("norm.{p}", "1.{p}"))
STEP: Names = (("norm.{p}", "0.{p}"), ("embed.proj.{p}", "1.{p}"))
TIMM_BLOCK: Names = (
    ("mixer.conv.{p}", "conv_dw.{p}"),
    ("norm.{p}", "norm.{p}"),
    ("mlp.fc1.{p}", "mlp.fc1.{p}"),
    ("mlp.fc2.{p}", "mlp.fc2.{p}"),
    ("scale.gamma", "gamma"),
)
#: The original's names; transformers changed those of norm and scale.
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
    """What others keep as convolutions of 1×1 and maps of one cell becomes matrices and vectors."""

    def as_ours(self, name: str, tensor: Tensor) -> Tensor:
        if ".mlp." in name and tensor.shape[2:] == (1, 1):
            return tensor.flatten(1)
        return tensor.flatten() if name.endswith("gamma") and tensor.shape[1:] == (1, 1) else tensor


TIMM = FlatteningKeyMap(
    "timm",
    (
        *below("stages.0.downsample", "stem", STEM),
        *below("stages.{i}.downsample", "stages.{i}.downsample", STEP),
        *below("stages.{i}.blocks.{j}", "stages.{i}.blocks.{j}", TIMM_BLOCK),
        ("norm.{p}", "norm_pre.{p}"),
        ("pooled_norm.{p}", "head.norm.{p}"),
        ("head.{p}", "head.fc.{p}"),
    ),
)

ORIGINAL = KeyMap(
    "the original ConvNeXt",
    (
        *below("stages.0.downsample", "downsample_layers.0", STEM),
        *below("stages.{i}.downsample", "downsample_layers.{i}", STEP),
        *below("stages.{i}.blocks.{j}", "stages.{i}.{j}", BLOCK),
        ("pooled_norm.{p}", "norm.{p}"),
        ("head.{p}", "head.{p}"),
    ),
)

TRANSFORMERS = KeyMap(
    "transformers",
    (
        ("stages.0.downsample.embed.proj.{p}", "embeddings.patch_embeddings.{p}"),
        ("stages.0.downsample.norm.{p}", "embeddings.layernorm.{p}"),
        *below("stages.{i}.downsample", "encoder.stages.{i}.downsampling_layer", STEP),
        *below("stages.{i}.blocks.{j}", "encoder.stages.{i}.layers.{j}", BLOCK),
        ("pooled_norm.{p}", "layernorm.{p}"),
        ("head.{p}", "classifier.{p}"),
    ),
)


def torchvision(num_stages: int) -> KeyMap:
    """All in one row: the stem is 0, stages have odd numbers, the steps between them even ones."""
    names = [*below("stages.0.downsample", "features.0", STEM)]
    for stage in range(num_stages):
        names += below(f"stages.{stage}.blocks.{{i}}", f"features.{2 * stage + 1}.{{i}}", TORCHVISION_BLOCK)
    for stage in range(1, num_stages):
        names += below(f"stages.{stage}.downsample", f"features.{2 * stage}", STEP)
    names += [("pooled_norm.{p}", "classifier.0.{p}"), ("head.{p}", "classifier.2.{p}")]
    return FlatteningKeyMap("torchvision", tuple(names))


def keymaps(config: ConvNeXtConfig) -> tuple[KeyMap, ...]:
    return TIMM, ORIGINAL, torchvision(len(config.dims)), TRANSFORMERS
