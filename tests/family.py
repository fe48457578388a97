"""The table of models as tests see it: the smallest of each family, with few blocks, with weights that matter."""

import torch

import vitreous as vt
from tests.parity import fill
from vitreous.models import MODELS


def smallest_of_each_family():
    smallest = {}
    for name, config in MODELS.items():
        with torch.device("meta"):
            size = sum(p.numel() for p in config.build().parameters())
        family = type(config), name.split("_")[0].rstrip("0123456789")
        smallest[family] = min(smallest.get(family, (size, name)), (size, name))
    return [name for _, name in smallest.values()]


def shallow(name):
    """Options that leave a row as few blocks as show that they are strung together."""
    config = MODELS[name]
    if hasattr(config, "stages"):
        return {"stages": tuple(stage.override(depth=1) for stage in config.stages)}
    return {"depths": (1,) * len(config.depths)} if hasattr(config, "depths") else {"depth": 2}


def small(name, **overrides):
    """A row with few, filled weights: real enough to compute with."""
    return fill(vt.create_model(name, image_size=64, num_classes=7, **overrides))
