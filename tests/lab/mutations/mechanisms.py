"""Mutations for claims about mechanisms: windows, features, deformable points, neighborhoods, weight sharing."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange

from tests.lab.mutations.base import Mutation
from vitreous.layers.window import WindowAttention


def shift_first_block_of_stage(original):
    """The text's scheme: the first block of a stage is shifted."""
    return lambda self, context: WindowAttention(
        context, self.size, shifted=self.shift == "alternate" and context.index == 0
    )


def omit_scale(original):
    def forward(self, x):
        shift = (x.square().sum(-1, keepdim=True) + math.log(len(self.directions))) / 2
        return x @ self.directions.T - shift

    return forward


def normalize_channels_instead_of_tokens(original):
    def forward(self, x, grid, num_prefix=0):
        q, k, v = rearrange(self.qkv(x), "b n (three h k) -> three b h k n", three=3, h=self.num_heads)
        q, k = F.normalize(q, dim=-2) * self.temperature, F.normalize(k, dim=-2)
        return self.proj(rearrange(self.attend(q, k, v), "b h k n -> b n (h k)"))

    return forward


def attend_across_the_batch(original):
    """Swap the first two axes, the layout that torch's own layers expect."""
    return lambda self, x, *arguments: original(self, x.transpose(0, 1), *arguments).transpose(0, 1)


def restrict_to_row(original):
    """Restrict the neighborhood to one row."""

    def groups(self, grid, device):
        found = original(self, grid, device)
        same_row = (found.queries // grid[1])[:, :, None] == (found.keys // grid[1])[:, None, :]
        return found._replace(mask=found.mask & same_row)

    return groups


def mask_after_the_softmax(original):
    def forward(self, q, k, v, *, bias=None, mask=None, layout=None):
        weights = self.weights(q, k, bias=bias)
        return (weights if mask is None else weights * mask) @ v

    return forward


def project_before_reducing(original):
    """Keys and values of all cells, then a mean over regions, which saves no projection."""

    def forward(self, x, grid, num_prefix=0):
        reduced = self.reduce(rearrange(x, "b (y x) d -> b d y x", y=grid[0]))
        return self.attention(x, x) + 0 * reduced.mean()

    return forward


def normalize_the_stream(original):
    """Normalize the residual stream itself, as in Post-LN."""

    def forward(self, x, grid, num_prefix=0):
        x = self.norm1(x)
        x = x + self.mixer(x, grid, num_prefix)
        x = self.norm2(x)
        return x + self.mlp(x)

    return forward


def scale_by_position(original):
    """Use a different projection at every position."""

    def forward(self, images):
        tokens = original(self, images)
        return tokens * torch.linspace(0.9, 1.1, tokens.shape[1])[:, None]

    return forward


MUTATIONS = [
    Mutation("shifted_windows", "shifts the first block of a stage", "vitreous.layers.window:Window.make",
             shift_first_block_of_stage),
    Mutation("shifted_windows", "no mask: opposite edges attend to each other",
             "vitreous.layers.window:WindowPartition.mask", lambda original: lambda self, device: None),
    Mutation("performer", "queries and keys are not divided by the fourth root of their width",
             "vitreous.layers.performer:PositiveFeatures.forward", omit_scale),
    Mutation("cross_covariance", "normalizes the wrong axis", "vitreous.layers.covariance:CrossCovariance.forward",
             normalize_channels_instead_of_tokens),
    Mutation("cross_covariance", "images attend to images", "vitreous.layers.covariance:CrossCovariance.forward",
             attend_across_the_batch),
    Mutation("deformable", "no softmax over a query's points", "vitreous.layers.deformable_points:PointAttend.weights",
             lambda original: lambda self, q, k, **options: q),
    Mutation("deformable", "all queries share their points",
             "vitreous.layers.deformable_points:PointAttention.locations",
             lambda original: lambda self, x, reference, shapes: original(
                 self, x[:, :1].expand_as(x), reference[:, :1].expand(-1, x.shape[1], -1, -1), shapes)),
    Mutation("local_attention", "neighbors of the same row alone", "vitreous.layers.local:NeighborAttention.groups",
             restrict_to_row),
    Mutation("local_attention", "the mask comes after the softmax", "vitreous.layers.attention:Attend.forward",
             mask_after_the_softmax),
    Mutation("spatial_reduction", "keys are not reduced", "vitreous.layers.reduction:ReducedAttention.forward",
             project_before_reducing),
    Mutation("batch_first", "a ViT's images attend to each other", "vitreous.layers.attention:SelfAttention.forward",
             attend_across_the_batch),
    Mutation("final_norm", "the stream itself is normalized", "vitreous.layers.block:PreNormBlock.forward",
             normalize_the_stream),
    Mutation("convolutional_stem", "CvT's stem strides by 8", "vitreous.models.cvt:STRIDES",
             lambda original: (8, 2, 2)),
    Mutation("weight_sharing", "every position has a different projection", "vitreous.layers.patch:PatchEmbed.forward",
             scale_by_position),
]  # fmt: skip
