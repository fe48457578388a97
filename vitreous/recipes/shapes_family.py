"""One recipe for every family: a configuration of each, shrunk to 64 pixels, learns Shapes on a CPU.

    vitreous train shapes_family                                the shrunk ViT
    python -m benchmarks.family                                 each family in turn, as a table

One set of settings for all of them, tuned for none, so that the table shows what a family does when nobody helps it;
only CAFormer goes without its hidden head, which dies at this learning rate.
Measured: from 28 % (ViT) to nearly 100 % (MobileViT) of 2,000 held-out scenes (docs/family.md,
docs/figures/family.json).
"""

from __future__ import annotations

from typing import Any

from vitreous.data.augment import Augment
from vitreous.layers.reduction import Reduction
from vitreous.layers.window import Window
from vitreous.models.base import Config
from vitreous.models.coatnet import CoAtNetConfig
from vitreous.models.convnext import ConvNeXtConfig
from vitreous.models.cvt import CvTConfig
from vitreous.models.dat import DATConfig
from vitreous.models.efficientformer import EfficientFormerConfig
from vitreous.models.fastvit import FastViTConfig
from vitreous.models.hybrid import HybridConfig
from vitreous.models.hybrid_resnet import HybridResNetConfig
from vitreous.models.metaformer import CAFORMER, CONVFORMER, POOLFORMER
from vitreous.models.mobilevit import MobileViTConfig
from vitreous.models.pvt import PVTConfig
from vitreous.models.pvt_v2 import PVTv2Config
from vitreous.models.pyramid import PyramidConfig, StageConfig
from vitreous.models.swin import SwinConfig
from vitreous.models.vit import ViTConfig
from vitreous.models.xcit import XCiTConfig
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.optim import Muon

DIMS, DEPTHS, HEADS = (32, 64, 96, 128), (1, 1, 2, 1), (1, 2, 3, 4)
ENCODER: dict[str, Any] = {"dim": 64, "num_heads": 2}

SHRUNK: dict[str, Config] = {
    "ViT": ViTConfig(patch_size=(8, 8), depth=4, **ENCODER),
    "ViT, conv stem": ViTConfig(patch_size=(8, 8), depth=4, stem="conv", **ENCODER),
    "ViT with downsampling": PyramidConfig(
        patch_size=(8, 8), stages=tuple(StageConfig(dim=64 << i, depth=2, num_heads=2 << i) for i in range(2))
    ),
    "hybrid, BiT + ViT": HybridConfig(patch_size=(8, 8), stem_depths=(1,), depth=3, **ENCODER),
    "hybrid, ResNet + encoder": HybridResNetConfig(depths=(1, 1, 2), **ENCODER),
    "Swin": SwinConfig(dims=DIMS, depths=(2, 2, 2, 2), num_heads=HEADS, mixer=Window(size=4)),
    "PVT": PVTConfig(dims=DIMS, depths=DEPTHS, num_heads=HEADS, mixer=Reduction(ratios=(4, 2, 1, 1))),
    "PVTv2": PVTv2Config(dims=DIMS, depths=DEPTHS, num_heads=HEADS, mixer=Reduction(ratios=(4, 2, 1, 1))),
    "XCiT": XCiTConfig(patch_size=(8, 8), depths=(3, 1), **ENCODER),
    "CvT": CvTConfig(dims=(32, 64, 128), depths=(1, 1, 3), num_heads=(1, 2, 4)),
    "DAT": DATConfig(dims=DIMS, depths=(2, 2, 2, 2), num_heads=HEADS, window_size=4),
    "CoAtNet": CoAtNetConfig(stem_dims=(16, 16), dims=DIMS, depths=DEPTHS),
    "EfficientFormer": EfficientFormerConfig(dims=DIMS, depths=(1, 1, 2, 2), num_heads=4, key_dim=16, value_dim=64),
    "ConvNeXt": ConvNeXtConfig(dims=DIMS, depths=DEPTHS, num_heads=HEADS),
    "FastViT": FastViTConfig(dims=(24, 48, 96, 192), depths=DEPTHS, num_attention_stages=1),
    "PoolFormer": POOLFORMER.override(dims=DIMS, depths=DEPTHS, num_heads=HEADS),
    "ConvFormer": CONVFORMER.override(dims=DIMS, depths=DEPTHS, num_heads=HEADS),
    "CAFormer": CAFORMER.override(dims=DIMS, depths=DEPTHS, num_heads=HEADS, hidden_head=False),
    "MobileViT": MobileViTConfig(
        dims=(16, 32, 48, 64, 96), depths=(1, 1, 1, 2, 1), mixer_dims=DIMS[1:], num_heads=HEADS[1:], final_dim=256
    ),
}

recipe = Recipe(
    model=SHRUNK["ViT"].override(image_size=64),
    data=DataConfig("shapes"),
    augment=Augment(crop="none", flip_rate=0.0),
    task=Classify(),
    train=TrainConfig(steps=1000, batch_size=32, optimizer=Muon(lr=2e-3, matrix_lr=0.02), evaluate_every=0),
)
