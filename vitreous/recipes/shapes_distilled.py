"""A student on 4,000 scenes of Shapes, with the quickstart's model as its teacher.

make quickstart                                             makes the teacher
vitreous train shapes_distilled                             the student with its teacher
vitreous train shapes_distilled --task.weight 0             the same student alone
"""

from vitreous.data.augment import Augment
from vitreous.models.vit import ViTConfig
from vitreous.recipes.base import DataConfig, Recipe
from vitreous.tasks.distill import Distill
from vitreous.train.config import TrainConfig

recipe = Recipe(
    model=ViTConfig(
        image_size=(64, 64),
        patch_size=(8, 8),
        stem="conv",
        dim=32,
        depth=2,
        num_heads=2,
        position="sincos_2d",
        pool="mean",
        class_token=False,
        init="deit",
    ),
    data=DataConfig("shapes", limit=4_000),
    augment=Augment(crop="none", flip_rate=0.0),
    task=Distill(teacher="runs/quickstart/model.safetensors", weight=0.9, temperature=2.0),
    train=TrainConfig(epochs=10, batch_size=32, optimiser="muon", lr=2e-3, evaluate_every=0),
)
