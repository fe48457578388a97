"""ImageNet-1k with ResNet-50: SGD with momentum, learning rate 0.1 at batch 256, step decay, 90 epochs.

    torchrun --nproc-per-node 8 -m vitreous train imagenet_resnet50 --data imagenet/

Requires GPUs; not yet run to completion.
"""

from vitreous.data.augment import Augment
from vitreous.models import find_config
from vitreous.runs.recipe import DataConfig, Recipe
from vitreous.tasks.classify import Classify
from vitreous.train.config import TrainConfig
from vitreous.train.optim import SGD
from vitreous.train.schedule import Steps

recipe = Recipe(
    model=find_config("resnet50"),
    data=DataConfig("imagenet", memory="no"),
    augment=Augment(crop="resized", crop_scale=(0.08, 1.0)),
    task=Classify(),
    train=TrainConfig(
        epochs=90,
        batch_size=256,
        optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=Steps(warmup=0.0),
        clip=0.0,
    ),
)
