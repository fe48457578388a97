"""Mutations for claims about memory, operations, parameters and published tables."""

from torch import nn

from tests.lab.mutations.base import Mutation

LAB = "vitreous.lab.claims"


def without_projection(original):
    def init(self, *args, **options):
        original(self, *args, **options)
        self.proj = nn.Identity()

    return init


def a_filter_per_channel(original):
    def init(self, patch_size, num_channels, dim, **options):
        original(self, patch_size, num_channels, dim, **options)
        self.proj = nn.Conv2d(num_channels, dim, patch_size, stride=patch_size, groups=num_channels)

    return init


MUTATIONS = [
    Mutation(
        "activation_memory",
        "checkpointing does not wrap the blocks",
        "vitreous.train.outside:checkpoint_blocks",
        lambda original: lambda model: None,
    ),
    Mutation(
        "activation_memory",
        "attention is never fused",
        "vitreous.layers.attention:Attend.forward",
        lambda original: lambda self, q, k, v, **_: self.weights(q, k) @ v,
    ),
    Mutation(
        "doubled_side",
        "tokens attend to the first 49 only",
        "vitreous.layers.attention:Attend.forward",
        lambda original: lambda self, q, k, v, **_: original(self, q, k[..., :49, :], v[..., :49, :]),
    ),
    Mutation(
        "attention_parameters",
        "no output projection",
        "vitreous.layers.attention:SelfAttention.__init__",
        without_projection,
    ),
    Mutation(
        "training_compute",
        "the block omits its MLP",
        "vitreous.layers.block:PreNormBlock.forward",
        lambda original: lambda self, x, grid, num_prefix=0: x + self.mixer(self.norm1(x), grid, num_prefix),
    ),
    Mutation(
        "training_compute",
        "the backward pass costs as much as the forward pass",
        f"{LAB}.training_compute:right",
        lambda original: lambda *setting: original(*setting) * 4 / 6,
    ),
    Mutation(
        "window_cost",
        "one row and column of windows too many",
        "vitreous.layers.window:grid_of",
        lambda original: lambda grid, window: (grid[0] // window[0] + 1, grid[1] // window[1] + 1),
    ),
    Mutation(
        "patch_embedding_cost",
        "every filter covers one channel",
        "vitreous.layers.patch:PatchEmbed.__init__",
        a_filter_per_channel,
    ),
    Mutation(
        "flops_or_macs",
        "no output projection",
        "vitreous.layers.attention:SelfAttention.__init__",
        without_projection,
    ),
    Mutation(
        "quoted_accuracies",
        "only the best number of every model is kept",
        "vitreous.weights.accuracy:PUBLISHED_ACCURACY",
        lambda original: list({row.model: row for row in sorted(original, key=lambda row: row.top1)}.values()),
    ),
    Mutation(
        "size_table",
        "size fitted against time",
        f"{LAB}.size_table:fitted",
        lambda original: lambda sizes, values: original(values, sizes),
    ),
]
