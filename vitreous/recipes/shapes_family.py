"""One recipe for every family: a configuration of each, shrunk to 64 pixels, learns Shapes on a CPU.

    vitreous train shapes_family                                the shrunk ViT
    python -m benchmarks.family                                 each family in turn, as a table

One set of settings for all of them, tuned for none, so that the table shows what a family does when nobody helps it;
only CAFormer goes without its hidden head, which dies at this learning rate.
Measured: from 28 % (ViT) to nearly 100 % (MobileViT) of 2,000 held-out scenes (docs/family.md,
docs/figures/family.json).
"""

from __future__ import annotations

from vitreous.data.augment import Augment
from vitreous.models import FAMILIES
from vitreous.models.base import Config
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.optim import Muon

#: By title, as the records at the end of the model files have them.
SHRUNK: dict[str, Config] = {title: config for family in FAMILIES.values() for title, config in family.shrunk.items()}

recipe = Recipe(
    model=SHRUNK["ViT"].override(image_size=64),
    data=DataConfig("shapes"),
    augment=Augment(crop="none", flip_rate=0.0),
    task=Classify(),
    train=TrainConfig(steps=1000, batch_size=32, optimizer=Muon(lr=2e-3, matrix_lr=0.02), evaluate_every=0),
)
