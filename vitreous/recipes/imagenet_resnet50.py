"""ImageNet-1k with ResNet-50, the classic way: SGD with momentum at 0.1 per 256 images, 90 epochs, three steps.

    torchrun --nproc-per-node 8 -m vitreous train imagenet_resnet50 --data imagenet/

For a machine with GPUs; never run to its end by us.
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
