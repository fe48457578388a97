"""Mutations for claims measured on small trained models."""

from tests.lab.mutations.base import Mutation


def attend_to_self(original):
    """Attention in which every token takes only its own value."""
    return lambda self, q, k, v, **options: v


def by_largest_entry(original):
    return lambda vector: [each / max(float(x.abs().max()) for x in vector) for each in vector]


SELF_ONLY = ("tokens attend only to themselves", "vitreous.layers.attention:Attend.forward", attend_to_self)

MUTATIONS = [
    Mutation("receptive_field", *SELF_ONLY),
    Mutation("distant_halves", *SELF_ONLY),
    Mutation("occlusion", *SELF_ONLY),
    Mutation("head_importance", *SELF_ONLY),
    Mutation("sharp_minima", *SELF_ONLY),
    Mutation(
        "sharp_minima",
        "a direction divided by its largest entry instead of its length",
        "vitreous.lab.instruments.curvature:unit",
        by_largest_entry,
    ),
    Mutation(
        "universal_approximation",
        "position embeddings are omitted",
        "vitreous.models.vit:make_position",
        lambda original: lambda config, grid: None,
    ),
    Mutation("generalization_bounds", *SELF_ONLY),
    Mutation(
        "generalization_bounds",
        "the divergence divided by σ instead of σ²",
        "vitreous.lab.claims.generalization_bounds:right",
        lambda original: lambda distance, sigma: distance**2 / (2 * sigma),
    ),
]
