"""Semantic segmentation of Shapes with a small ViT and a per-patch linear head.

vitreous train shapes_segment
vitreous predict runs/shapes_segment/model.safetensors IMAGES --draw FOLDER
"""

from vitreous.data.augment import Augment
from vitreous.models.segmenter import SegmenterConfig
from vitreous.models.vit import ViTConfig
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.segment import Segment
from vitreous.train.config import TrainConfig
from vitreous.train.optim import Muon

recipe = Recipe(
    model=SegmenterConfig(
        image_size=(64, 64),
        backbone=ViTConfig(
            image_size=(64, 64),
            patch_size=(4, 4),
            stem="conv",
            dim=96,
            depth=4,
            num_heads=4,
            position="sincos_2d",
            pool="mean",
            class_token=False,
            init="deit",
        ),
    ),
    data=DataConfig("shapes"),
    augment=Augment(crop="pad", pad=4, flip_rate=0.5),
    task=Segment(),
    train=TrainConfig(steps=3000, batch_size=32, optimizer=Muon(lr=2e-3), evaluate_every=0, checkpoint_every=400),
)
