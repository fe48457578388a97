"""ImageNet-1k with ViT-B/16: AdamW, learning rate 1e-3, weight decay 0.05, batch 4096, 300 epochs.

    torchrun --nproc-per-node 8 -m vitreous train imagenet_vit --data imagenet/

Requires GPUs; not yet run to completion. The augmentation is that of DeiT.
"""

from vitreous.data.augment import Augment
from vitreous.models import find_config
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.optim import AdamW
from vitreous.train.schedule import Cosine

recipe = Recipe(
    model=find_config("vit_base_16").override(drop_path_rate=0.1, init="deit"),
    data=DataConfig("imagenet", memory="no"),
    augment=Augment(crop="resized", crop_scale=(0.08, 1.0), randaugment_ops=2, erase_rate=0.25, mixup=0.8, cutmix=1.0),
    task=Classify(smoothing=0.1),
    train=TrainConfig(
        epochs=300,
        batch_size=4096,
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        schedule=Cosine(warmup=10 / 300),
        clip=1.0,
        ema=0.9999,
        compile=True,
    ),
)
