"""What trained models show when they are probed."""

from tests.lab.mutations.base import Mutation


def looks_at_itself(original):
    """Attention in which every token takes its own value only."""
    return lambda self, q, k, v, **options: v


def by_largest_entry(original):
    return lambda vector: [each / max(float(x.abs().max()) for x in vector) for each in vector]


ALONE = ("tokens that look at nobody else", "vitreous.layers.attention:Attend.forward", looks_at_itself)

MUTATIONS = [
    Mutation("receptive_field", *ALONE),
    Mutation("distant_halves", *ALONE),
    Mutation("occlusion", *ALONE),
    Mutation("head_importance", *ALONE),
    Mutation("sharp_minima", *ALONE),
    Mutation(
        "sharp_minima",
        "a direction divided by its largest entry instead of its length",
        "vitreous.lab.instruments.curvature:unit",
        by_largest_entry,
    ),
    Mutation(
        "universal_approximation",
        "positions that are forgotten",
        "vitreous.models.vit:make_position",
        lambda original: lambda config, grid: None,
    ),
    Mutation("generalization_bounds", *ALONE),
    Mutation(
        "generalization_bounds",
        "the divergence divided by σ instead of σ²",
        "vitreous.lab.claims.generalization_bounds:right",
        lambda original: lambda distance, sigma: distance**2 / (2 * sigma),
    ),
]
