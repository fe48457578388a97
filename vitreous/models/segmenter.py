"""Segmenter: semantic segmentation by a backbone and a linear classifier on every cell of a feature map.

"Segmenter: Transformer for Semantic Segmentation", Strudel et al. 2021 (arXiv 2105.05633), with its linear decoder,
which is also the linear probe of DINOv2 on dense tasks:

    masks = upsample(W · map + b)        map (d, y, x) of the backbone, masks (classes, Y, X) in pixels of the image

Any backbone can be used; ``level`` selects a feature map of a pyramid. Difference from the paper: images of any size
are accepted, and the masks are cropped to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.init import trunc_normal_
from vitreous.models.base import Backbone, Config, Model, ModelConfig
from vitreous.models.family import Family, Paper
from vitreous.models.vit import ViTConfig
from vitreous.samples import Inputs


@dataclass(frozen=True, kw_only=True)
class SegmenterConfig(ModelConfig):
    """Configuration of a segmenter; its image size and channels override those of ``backbone``."""

    backbone: Config = ViTConfig(num_classes=0)
    level: int = 1  # feature map of the backbone, 1 is the finest

    def __post_init__(self) -> None:
        backbone = Config.given("backbone", self.backbone)
        shared = {"image_size": self.image_size, "num_channels": self.num_channels, "num_classes": 0}
        object.__setattr__(self, "backbone", backbone.override(**shared))
        super().__post_init__()

    def build(self) -> Segmenter:
        return Segmenter(self)


class Segmenter(Model):
    """Semantic segmentation: logits per class and pixel, at the size of the images."""

    config: SegmenterConfig
    task = "segment"
    main_output = "masks"

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__(config)
        self.encoder = config.backbone.build()
        self.strides, self.dims = self.encoder.strides, self.encoder.dims
        if config.level > len(self.dims):
            raise ValueError(
                f"level must be between 1 and {len(self.dims)}, the backbone's feature maps; got {config.level}"
            )
        self.head = self.make_head(config.num_classes)

    @property
    def backbone(self) -> Backbone:
        return self.encoder

    @property
    def blocks(self) -> nn.ModuleList | list[nn.Module]:
        return self.encoder.blocks

    def make_head(self, num_classes: int) -> nn.Module:
        if num_classes < 1:
            raise ValueError("a segmenter needs at least one class")
        head = nn.Conv2d(self.dims[self.config.level - 1], num_classes, kernel_size=1)
        trunc_normal_(head.weight, std=0.02)
        assert head.bias is not None
        nn.init.zeros_(head.bias)
        return head

    def outputs(self, inputs: Inputs) -> dict[str, Tensor]:
        return {"masks": self(inputs.images)}

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k y x"]:
        maps = self.encoder.features(images).maps
        if not maps:
            raise ValueError("the backbone drops tokens, so it has no feature map; set its token_drop_rate to 0")
        features = maps[self.config.level - 1]
        logits = self.head(features.values)
        size = [cells * stride for cells, stride in zip(logits.shape[2:], features.stride, strict=True)]
        masks = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
        return masks[:, :, : images.shape[2], : images.shape[3]]


FAMILY = Family(
    name="segmenter",
    config=SegmenterConfig,
    variants={},
    papers={
        "*": Paper(
            "Segmenter", "Segmenter: Transformer for Semantic Segmentation", "Strudel et al.", 2021, "2105.05633"
        )
    },
)
