"""The ordered table of claims, each a file in ``claims/``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.lab.claim import Case, Claim
from vitreous.lab.trial import Trial
from vitreous.options import did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.lab.outcome import ClaimOutcome

FORMULAS = (
    "smallest_object", "diagonal_query", "temperature", "permutation", "dot_product_variance",
    "attention_eigenvalues", "attention_rank", "attention_macs", "quadratic_term", "activation_memory",
    "doubled_side", "attention_parameters", "training_compute", "window_cost", "patch_embedding_cost",
    "layer_norm", "drop_path", "cutmix", "cosine_schedule", "relative_bias",
    "distillation_loss", "contrastive_loss", "detection_loss", "gelu", "quantization",
    "truncated_normal", "attention_distance", "rollout", "flops_or_macs", "quoted_accuracies",
    "size_table",
)  # fmt: skip
MECHANISMS = (
    "shifted_windows", "performer", "cross_covariance", "deformable", "local_attention",
    "spatial_reduction", "batch_first", "final_norm", "convolutional_stem", "weight_sharing",
)  # fmt: skip
MEASURED = (
    "norm_placement", "low_pass", "receptive_field", "distant_halves", "occlusion",
    "entropy_generalization", "head_importance", "scaling_law", "small_data", "layers_near_to_far",
    "pooling_and_positions", "patch_size", "heads_specialize", "training_ingredients", "sharp_minima",
    "universal_approximation", "generalization_bounds", "attention_spectrum", "softmax_saturation",
)  # fmt: skip
PARTS = {"Formulas": FORMULAS, "Mechanisms": MECHANISMS, "Measured": MEASURED}
NAMES = FORMULAS + MECHANISMS + MEASURED


@dataclass(frozen=True)
class Experiment:
    """The contents of a file in ``claims/``: ``CLAIM``, ``cases(trial)`` and optionally ``draw(outcome)``."""

    name: str
    claim: Claim
    cases: Callable[[Trial], Iterator[Case]]
    draw: Callable[[ClaimOutcome], Figure]
    file: Path

    @property
    def number(self) -> int:
        return NAMES.index(self.name) + 1


def find_experiment(name: str) -> Experiment:
    """Import an experiment by its name or number."""
    if name.isdecimal() and 1 <= int(name) <= len(NAMES):
        name = NAMES[int(name) - 1]
    if name not in NAMES:
        raise ValueError(f"unknown claim {name!r}{did_you_mean(name, NAMES)} (vitreous lab lists all {len(NAMES)})")
    module = importlib.import_module(f"vitreous.lab.claims.{name}")
    return Experiment(
        name, module.CLAIM, module.cases, getattr(module, "draw", draw_default_figure), Path(str(module.__file__))
    )


def draw_default_figure(outcome: ClaimOutcome) -> Figure:
    """Draw the figure of a claim that defines none."""
    from vitreous.lab.figures import default_figure

    return default_figure(outcome, find_experiment(outcome.name).claim)
