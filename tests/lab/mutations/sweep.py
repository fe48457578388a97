"""Mutations of models, training and metrics for claims measured on the sweep."""

import torch.nn.functional as F
from einops import rearrange

from tests.lab.mutations.base import Mutation
from vitreous.layers.position import Learned


def all_positions_learned(make):
    return lambda config, grid: make(config, grid) or Learned(grid, config.dim, int(config.class_token))


def every_window_projected(forward):
    """Compute the correct tokens by a convolution of stride 1, most of whose output is dropped."""

    def convolve_all(self, images):
        (height, width), proj = self.patch_size, self.proj
        every = F.conv2d(images, proj.weight, proj.bias)
        return rearrange(every[:, :, ::height, ::width], "b d y x -> b (y x) d")

    return convolve_all


def no_residual(forward):
    def branches_only(self, x, grid, num_prefix=0, *read):
        return self.mlp(self.norm2(self.mixer(self.norm1(x), grid, num_prefix, *read)))

    return branches_only


MUTATIONS = [
    Mutation(
        "entropy_generalization",
        "entropy is counted in bits and compared with nats",
        "vitreous.explain.measures:entropy",
        lambda entropy: lambda weights: entropy(weights) / 0.6931,
    ),
    Mutation(
        "scaling_law",
        "the exponent lacks its sign",
        "vitreous.lab.claims.scaling_law:falling",
        lambda falling: lambda size, exponent: size**exponent,
    ),
    Mutation(
        "small_data",
        "the convolutional network averages over the batch",
        "vitreous.recipes.cifar10_convnet:ConvNet.pooled",
        lambda pooled: lambda self, features: features.tokens.mean(dim=(0, 1)).expand(len(features.tokens), -1),
    ),
    Mutation(
        "pooling_and_positions",
        "positions are learned even where there should be none",
        "vitreous.models.vit:make_position",
        all_positions_learned,
    ),
    Mutation(
        "patch_size",
        "patches are embedded at every pixel, then most are dropped",
        "vitreous.layers.patch:PatchEmbed.forward",
        every_window_projected,
    ),
    Mutation(
        "patch_size",
        "the learning rate never leaves zero",
        "vitreous.train.schedule:Schedule.rate",
        lambda rate: lambda self, step, total: 0.0,
    ),
    Mutation(
        "training_ingredients", "blocks have no residual", "vitreous.layers.block:PreNormBlock.forward", no_residual
    ),
]
