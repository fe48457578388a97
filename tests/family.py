"""The table of models as tests see it: the smallest of each family, with few blocks, with weights that matter."""

import copy
import functools

import pytest

import vitreous as vt
from tests.parity import fill
from vitreous.models import MODELS

#: The smallest row of every family; DeiT and DINOv2 share a file with ViT.
SMALLEST = (
    *("vit_tiny_16", "deit_tiny_16", "dinov2_small_14", "vit_down_tiny_16", "vit_tiny_r_s16", "hybrid_resnet18_tiny"),
    *("swin_tiny", "pvt_tiny", "pvt_v2_b0", "xcit_nano_12_16", "cvt_13", "dat_tiny", "coatnet_nano_rw", "resnet18"),
    "convnext_atto",
    "efficientformer_l1",
    "mobilevit_xxs",
    "fastvit_sa12",
    *("poolformer_s12", "caformer_s18"),
)


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
