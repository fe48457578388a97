"""One recipe for every model family: a shrunk configuration of each, trained on Shapes at 64 pixels on a CPU.

    vitreous train shapes_family                                the shrunk ViT
    python -m benchmarks.family                                 each family in turn, as a table

All families share the same training settings, which are tuned for none of them. The only exception is CAFormer, trained
without the hidden layer of its head, whose units die at this learning rate.
Measured: from 28 % (ViT) to nearly 100 % (MobileViT) of 2,000 held-out scenes (docs/concepts/families.md,
docs/records/family.json).
"""

from __future__ import annotations

from vitreous.data.augment import Augment
from vitreous.models import FAMILIES
from vitreous.models.base import Config
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.optim import Muon

#: Shrunk configurations by title, from the ``FAMILY`` records of the model modules.
SHRUNK: dict[str, Config] = {title: config for family in FAMILIES.values() for title, config in family.shrunk.items()}

recipe = Recipe(
    model=SHRUNK["ViT"].override(image_size=64),
    data=DataConfig("shapes"),
    augment=Augment(crop="none", flip_rate=0.0),
    task=Classify(),
    train=TrainConfig(steps=1000, batch_size=32, optimizer=Muon(lr=2e-3, matrix_lr=0.02), evaluate_every=0),
)
