"""Mutations for claims about attention, patch embeddings and the cost of attention."""

import math

import torch.nn.functional as F
from einops import rearrange

from tests.lab.mutations.base import Mutation
from vitreous.cost import LayerCost
from vitreous.layers.attention import Attend


def causal(original):
    def forward(self, q, k, v, **options):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale(q))

    return forward


def softmax_over_queries(original):
    return lambda self, q, k, v, **options: self.logits(q, k).softmax(dim=-2) @ v


def linear(original):
    def forward(self, q, k, v, **options):
        weights = (1 + F.elu(q * self.scale(q))) @ (1 + F.elu(k)).transpose(-2, -1)
        return weights / weights.sum(dim=-1, keepdim=True) @ v

    return forward


def only_the_first_product(module, args, output):
    q, k, _ = args
    return LayerCost(q.numel() * k.shape[-2])


MUTATIONS = [
    Mutation(
        "smallest_object",
        "rows and columns are swapped within patches",
        "vitreous.layers.patch:patchify",
        lambda original: (
            lambda images, patch_size: rearrange(
                images, "b c (y p) (x q) -> b (y x) (c q p)", p=patch_size[0], q=patch_size[1]
            )
        ),
    ),
    Mutation(
        "smallest_object",
        "the matched filter sums noise like the signal",
        "vitreous.lab.claims.smallest_object:matched_filter",
        lambda original: lambda p: original(p) ** 0.5,
    ),
    Mutation(
        "diagonal_query",
        "logits are divided by d instead of its root",
        "vitreous.layers.attention:Attend.scale",
        lambda original: lambda self, q: original(self, q) / (math.sqrt(q.shape[-1]) if self.scaled else 1.0),
    ),
    Mutation(
        "temperature",
        "logits are multiplied by the temperature",
        "vitreous.layers.attention:Attend.scale",
        lambda original: lambda self, q: original(self, q) * self.temperature**2,
    ),
    Mutation(
        "temperature",
        "logits are not divided by the root of d",
        "vitreous.layers.attention:Attend.scale",
        lambda original: lambda self, q: 1.0 / self.temperature,
    ),
    Mutation(
        "permutation",
        "attention is causal",
        "vitreous.layers.attention:Attend.forward",
        causal,
    ),
    Mutation(
        "permutation",
        "the classifier reads the first patch instead of the class token",
        "vitreous.models.vit:ViT.pooled",
        lambda original: lambda self, features: features.tokens[:, 1],
    ),
    Mutation(
        "attention_eigenvalues",
        "the softmax is taken over queries instead of keys",
        "vitreous.layers.attention:Attend.forward",
        softmax_over_queries,
    ),
    Mutation(
        "attention_rank",
        "linear attention replaces the softmax",
        "vitreous.layers.attention:Attend.forward",
        linear,
    ),
    Mutation(
        "attention_macs",
        "the cost of attention omits the product with the values",
        "vitreous.cost:FORMULAS",
        lambda original: {**original, Attend: only_the_first_product},
    ),
    Mutation(
        "attention_macs",
        "the output projection is omitted",
        "vitreous.lab.claims.attention_macs:right",
        lambda original: lambda side, num_prefix: original(side, num_prefix) * 3 // 4,
    ),
    Mutation(
        "quadratic_term",
        "the block's MLP is omitted",
        "vitreous.lab.claims.quadratic_term:right",
        lambda original: lambda side, width: original(side, width / 3),
    ),
    Mutation(
        "quadratic_term",
        "no attention counts as quadratic",
        "vitreous.cost:quadratic_attention",
        lambda original: lambda model: set(),
    ),
]
