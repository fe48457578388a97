"""Mutation of the claim that serves as a template."""

from tests.lab.mutations.base import Mutation

MUTATIONS = [
    Mutation(
        "dot_product_variance",
        "one variance instead of the product of both",
        "vitreous.lab.claims.dot_product_variance:right",
        lambda original: lambda sigma_q, sigma_k: sigma_q**2,
    ),
]
