"""A model that can be computed by hand: the second logit is a weighted sum of cells of 2×2 pixels, the first is 0."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vitreous.models.base import Backbone, Config, FeatureMap, Features


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    num_channels: int = 1
    num_classes: int = 2

    def build(self):
        raise NotImplementedError("toy(weights, image_size) builds it")


class Toy(Backbone):
    strides, dims = ((2, 2),), (1,)

    def __init__(self, config, weights):
        super().__init__(config)
        self.weights = nn.Parameter(torch.tensor(weights)[:, None])
        self.head = nn.utils.skip_init(nn.Linear, 1, 2, bias=False)  # makes no random draws
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[0.0], [1.0]]))

    def features(self, images):
        cells = F.avg_pool2d(images, 2)
        tokens = cells.flatten(2).transpose(1, 2)
        return Features(tokens, tuple(cells.shape[2:]), 0, (FeatureMap(cells, (2, 2)),))

    def pooled(self, features):
        return (features.tokens * self.weights).sum(dim=1)

    @property
    def blocks(self):
        return []


def dense(model):
    """The same model with a head for every cell: its one output is ``masks`` (b, k, y, x), logits of the cells."""

    def masks(inputs):
        features = model.features(inputs.images)
        cells = model.head(features.tokens[:, features.num_prefix :])
        return {"masks": cells.transpose(1, 2).unflatten(2, features.grid)}

    model.outputs = masks
    return model


def toy(weights, image_size):
    return Toy(ToyConfig(image_size=image_size), weights)
