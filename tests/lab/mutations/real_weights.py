"""Mutations of attention, its metrics, norms and quantizers, for claims measured on DeiT-Tiny."""

import torch

from tests.lab.mutations.base import Mutation


def sums_over_queries(_):
    def mean_distance(whole, grid, num_prefix, *, stride):
        y, x = (axis.double() for axis in torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
        y, x = y.flatten() * stride[0], x.flatten() * stride[1]
        far = torch.hypot(y[:, None] - y, x[:, None] - x)
        return (whole[:, :, num_prefix:, num_prefix:] * far).sum(dim=(-2, -1))

    return mean_distance


def without_final_norm(_):
    def forward(self, x, grid, num_prefix=0):
        x = self.norm1(x + self.mixer(x, grid, num_prefix))
        return x + self.mlp(x)

    return forward


def without_mask(original):
    def forward(self, q, k, v, *, bias=None, mask=None, layout=None):
        return original(self, q, k, v, bias=bias, layout=layout)

    return forward


def reversed_product(original):
    return lambda matrices, **options: original(list(matrices)[::-1], **options)


def only_down(original):
    def coordinates(grid, device=None):
        y, x = original(grid, device)
        return y, torch.zeros_like(x)

    return coordinates


MUTATIONS = [
    Mutation(
        "quantization",
        "the zero point is omitted",
        "vitreous.lab.instruments.quantize:zero_point",
        lambda _: lambda low, high, bits: 0,
    ),
    Mutation(
        "attention_distance",
        "distances are summed over queries instead of averaged",
        "vitreous.explain.measures:mean_distance",
        sums_over_queries,
    ),
    Mutation(
        "attention_distance",
        "distances count rows only",
        "vitreous.explain.measures:coordinates",
        only_down,
    ),
    Mutation(
        "rollout",
        "the last layer is on the right of the product",
        "vitreous.lab.claims.rollout:rollout",
        reversed_product,
    ),
    Mutation(
        "norm_placement",
        "Post-LN omits the second norm",
        "vitreous.layers.block:PostNormBlock.forward",
        without_final_norm,
    ),
    Mutation(
        "low_pass",
        "attention ignores its mask",
        "vitreous.layers.attention:Attend.forward",
        without_mask,
    ),
    Mutation(
        "layers_near_to_far",
        "distances count rows only",
        "vitreous.explain.measures:coordinates",
        only_down,
    ),
    Mutation(
        "heads_specialize",
        "similarities are dot products, not cosines",
        "vitreous.explain.measures:cosines",
        lambda _: lambda vectors: vectors @ vectors.transpose(-2, -1),
    ),
    Mutation(
        "attention_spectrum",
        "the entropy of the spectrum is in bits, but its exponential has base e",
        "vitreous.explain.measures:entropy",
        lambda original: lambda weights: original(weights) / torch.tensor(2.0).log(),
    ),
    Mutation(
        "softmax_saturation",
        "attention does not divide by the square root of its width",
        "vitreous.layers.attention:Attend.scale",
        lambda _: lambda self, q: 1.0,
    ),
]
