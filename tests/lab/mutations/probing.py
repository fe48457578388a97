"""What trained models show when they are probed."""

from tests.lab.mutations.base import Mutation


def looks_at_itself(original):
    """Attention in which every token takes its own value only."""
    return lambda self, q, k, v, **options: v


def unnormalised(original):
    return lambda vector: list(vector)


MUTATIONS = [
    Mutation("receptive_field", "tokens that look at nobody else", "vitreous.layers.attention:Attend.forward", looks_at_itself),
    Mutation(
        "distant_halves",
        "a network of convolutions that pools by maximum over the whole picture before its last refinement",
        "vitreous.lab.claims.distant_halves:right",
        lambda original: lambda colours: 1 - original(colours),
    ),
    Mutation("occlusion", "tokens that look at nobody else", "vitreous.layers.attention:Attend.forward", looks_at_itself),
    Mutation("head_importance", "tokens that look at nobody else", "vitreous.layers.attention:Attend.forward", looks_at_itself),
    Mutation("sharp_minima", "a direction that is not of length one", "vitreous.lab.curvature:unit", unnormalised),
    Mutation("sharp_minima", "tokens that look at nobody else", "vitreous.layers.attention:Attend.forward", looks_at_itself),
    Mutation(
        "universal_approximation",
        "positions that are forgotten",
        "vitreous.models.vit:make_position",
        lambda original: lambda config, grid: None,
    ),
    Mutation(
        "generalisation_bounds",
        "the divergence divided by σ instead of σ²",
        "vitreous.lab.claims.generalisation_bounds:right",
        lambda original: lambda distance, sigma: distance**2 / (2 * sigma),
    ),
    Mutation("generalisation_bounds", "tokens that look at nobody else", "vitreous.layers.attention:Attend.forward", looks_at_itself),
]
