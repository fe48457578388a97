"""CIFAR-10 with ResNet-18 and a stem for 32-pixel images: the large convolutional baseline.

vitreous train cifar10_resnet18 --data FOLDER/WITH/CIFAR

Measured: 53.1 % of the test set after 1.1 epochs (--train.epochs 1.1), which is what two cores do in 15 minutes
(docs/records/cifar10.json).
"""

from dataclasses import replace

from vitreous.models import find_config
from vitreous.recipes.cifar10_vit import recipe as vit
from vitreous.train.optim import SGD
from vitreous.train.schedule import Cosine

recipe = replace(
    vit,
    model=find_config("resnet18").override(image_size=32, stem="small"),
    train=vit.train.override(epochs=2, optimizer=SGD(lr=0.1, weight_decay=5e-4), schedule=Cosine(warmup=0.2), clip=0.0),
)
