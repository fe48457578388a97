"""The table of models as tests see it: the smallest of each family, with few blocks, with weights that matter."""

import copy
import functools

import pytest

import vitreous as vt
from tests.parity import fill
from vitreous.models import FAMILIES, MODELS

#: The smallest rows of every family; DeiT and DINOv2 share a file with ViT.
SMALLEST = tuple(name for family in FAMILIES.values() for name in family.smallest)


def others_slowly(names, quick=SMALLEST):
    """Names of models or weights as test parameters; all but the smallest of each family run with the slow tests."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name.split(".")[0] not in quick)) for name in names]


def shallow(name):
    """Options that leave a row as few blocks as show that they are strung together."""
    config = MODELS[name]
    if hasattr(config, "stages"):
        return {"stages": tuple(stage.override(depth=1) for stage in config.stages)}
    if hasattr(config, "depths"):
        in_pairs = name.startswith(("swin", "dat"))  # blocks of two kinds take turns
        return {"depths": (2 if in_pairs else 1,) * len(config.depths)}
    return {"depth": 2}


def small(name, **overrides):
    """A row with few, filled weights: real enough to compute with."""
    return fill(vt.create_model(name, image_size=64, num_classes=7, **overrides))


def tiny(name, **overrides):
    """The same with few blocks; a copy, since to build and fill one takes longer."""
    return small(name, **shallow(name) | overrides) if overrides else copy.deepcopy(filled(name))


@functools.cache
def filled(name):
    return small(name, **shallow(name))
