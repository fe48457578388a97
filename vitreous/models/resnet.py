"""ResNet: the convolutional baseline, with torchvision's layers.

"Deep Residual Learning for Image Recognition", He et al. 2015 (arXiv 1512.03385).

    x = pool(relu(norm(conv(image))))
    x = relu(shortcut(x) + branch(x))        × depth, in four stages; all but the first halve the map
    y = head(mean over the map of x)

The branch has two (basic) or three (bottleneck) convolutions, each with BatchNorm. Difference from the paper, as in
torchvision: a bottleneck has its stride in the 3×3 convolution. Differences from torchvision: the last BatchNorm of a
branch is initialized to zero unless ``zero_init_residual=False`` ("Accurate, Large Minibatch SGD", Goyal et al. 2017,
arXiv 1706.02677); the classifier is initialized with small weights as in all families; and ``stem="small"`` is the
paper's stem for CIFAR-10.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.base import Backbone, Config, FeatureMap, Features, check_stages, classifier
from vitreous.models.family import Family, Paper

WIDTHS = (64, 128, 256, 512)
EXPANSION = {"basic": 1, "bottleneck": 4}


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(Config):
    """Configuration of a ResNet; the defaults are ResNet-18."""

    depths: tuple[int, ...] = (2, 2, 2, 2)  # residual blocks in each of the four stages
    block: Literal["basic", "bottleneck"] = "basic"
    stem: Literal["imagenet", "small"] = "imagenet"  # small: stride 1, for images of about 32 pixels
    zero_init_residual: bool = True  # residual branches are zero at initialization

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(len(WIDTHS), depths=self.depths)

    @property
    def depth(self) -> int:
        """Total number of residual blocks."""
        return sum(self.depths)

    def build(self) -> ResNet:
        return ResNet(self)


class ResNet(Backbone):
    """ResNet."""

    config: ResNetConfig

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        finest = 1 if config.stem == "small" else 4
        self.strides = tuple((finest << stage, finest << stage) for stage in range(len(WIDTHS)))
        self.dims = tuple(width * EXPANSION[config.block] for width in WIDTHS)
        net = torchvision_resnet(config)
        self.stem = make_stem(config, net)
        self.stages = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4])
        self.head = classifier(self.dims[-1], config.num_classes)

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        self.check_images(images, smallest=(1, 1))
        x, maps = self.stem(images), []
        for stage, stride in zip(self.stages, self.strides, strict=True):
            x = stage(x)
            maps.append(FeatureMap(x, stride))
        return Features(rearrange(x, "b d y x -> b (y x) d"), (x.shape[2], x.shape[3]), 0, tuple(maps))

    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        return features.tokens.mean(dim=1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in self.stages for block in stage.children()]


def torchvision_resnet(config: ResNetConfig) -> Any:
    """Create torchvision's ResNet, of which the stem and stages are used."""
    from torchvision.models import resnet  # slow to import, so only where needed

    block = {"basic": resnet.BasicBlock, "bottleneck": resnet.Bottleneck}[config.block]
    return resnet.ResNet(block, list(config.depths), num_classes=1, zero_init_residual=config.zero_init_residual)


def make_stem(config: ResNetConfig, net: Any) -> nn.Sequential:
    """Create torchvision's stem for any number of channels, or the small stem with stride 1."""
    size, stride = (3, 1) if config.stem == "small" else (7, 2)
    conv = nn.Conv2d(config.num_channels, WIDTHS[0], size, stride=stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    parts = {"conv": conv, "norm": net.bn1, "relu": net.relu}
    if config.stem == "imagenet":
        parts["pool"] = net.maxpool
    return nn.Sequential(OrderedDict(parts))


VARIANTS: dict[str, ResNetConfig] = {
    "resnet18": ResNetConfig(depths=(2, 2, 2, 2)),
    "resnet34": ResNetConfig(depths=(3, 4, 6, 3)),
    "resnet50": ResNetConfig(depths=(3, 4, 6, 3), block="bottleneck"),
    "resnet101": ResNetConfig(depths=(3, 4, 23, 3), block="bottleneck"),
    "resnet152": ResNetConfig(depths=(3, 8, 36, 3), block="bottleneck"),
}

FAMILY = Family(
    name="resnet",
    config=ResNetConfig,
    variants=VARIANTS,
    papers={"*": Paper("ResNet", "Deep Residual Learning for Image Recognition", "He et al.", 2015, "1512.03385")},
    plotted=("resnet50",),
    exports_any_size=True,
)
