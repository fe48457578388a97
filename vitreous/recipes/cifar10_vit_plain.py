"""CIFAR-10 with a plain ViT on patches of 4 pixels: a baseline without convolutions at the same budget.

vitreous train cifar10_vit_plain --data FOLDER/WITH/CIFAR

Measured: 70.0 % of the test set after 13 minutes on two cores (--train.epochs 3.4), 77.6 % after 53 minutes of one
core (--train.epochs 7.4), 85.3 % after 24 epochs, 137 minutes on a busy machine (docs/records/cifar10.json).
"""

from dataclasses import replace

from vitreous.models.vit import ViTConfig
from vitreous.recipes.cifar10_vit import recipe as with_stem

recipe = replace(
    with_stem,
    model=ViTConfig(
        image_size=(32, 32),
        patch_size=(4, 4),
        dim=128,
        depth=6,
        num_heads=4,
        mlp_ratio=2.0,
        class_token=False,
        pool="mean",
        init="deit",
    ),
)
