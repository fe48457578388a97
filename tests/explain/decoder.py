"""A small detector: self-attention between cells, then object queries with self- and cross-attention."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import nn

from tests.parity import fill
from vitreous.layers.attention import CrossAttention, SelfAttention
from vitreous.layers.layout import Layout
from vitreous.layers.mixer import MixerContext
from vitreous.layers.tokens import Tokens
from vitreous.models.base import Backbone, Config, Features

DIM, HEADS, PATCH, QUERIES = 12, 3, 8, 20


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(Config):
    num_channels: int = 3
    num_classes: int = 4

    def build(self):
        return Detector(self)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = SelfAttention(MixerContext(dim=DIM, num_heads=HEADS, grid=(2, 2)))

    def forward(self, x, grid):
        return x + self.mixer(x, grid)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.cross = CrossAttention(DIM, HEADS), CrossAttention(DIM, HEADS)

    def forward(self, x, memory, grid):
        x = x + self.own(x, x)
        return x + self.cross(x, memory, layout=Layout(Tokens(None, QUERIES, "queries"), Tokens(grid)))


class Detector(Backbone):
    strides, dims = ((PATCH, PATCH),), (DIM,)

    def __init__(self, config):
        super().__init__(config)
        self.stem = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.encoder = nn.ModuleList([Encoder(), Encoder()])
        self.queries = nn.Parameter(torch.zeros(QUERIES, DIM))
        self.decoder = Decoder()
        self.head = nn.Linear(DIM, config.num_classes)

    def features(self, images):
        cells = self.stem(images)
        grid = tuple(cells.shape[2:])
        x = rearrange(cells, "b d y x -> b (y x) d")
        for block in self.encoder:
            x = block(x, grid)
        found = self.decoder(self.queries.expand(len(images), -1, -1), x, grid)
        return Features(found, None, QUERIES, ())

    def pooled(self, features):
        return features.tokens.amax(dim=1)

    @property
    def blocks(self):
        return [*self.encoder, self.decoder]


def detector():
    return fill(Detector(DetectorConfig(image_size=(32, 48))))
