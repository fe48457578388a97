"""Every option validates its fields on construction, whatever is passed."""

import dataclasses
import json
import math
import sys

import pytest

import vitreous as vt
from vitreous.spec import Preprocess
from vitreous.tasks import TASKS
from vitreous.train.optim import OPTIMIZERS
from vitreous.train.schedule import SCHEDULES

ODD = (
    None,
    "x",
    "",
    b"x",
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.5,
    10**400,
    1e308,
    True,
    [],
    [1],
    {},
    {"a": 1},
    object(),
)
KINDS = [
    vt.TrainConfig,
    vt.DataConfig,
    vt.Augment,
    Preprocess,
    *map(type, (*TASKS.values(), *OPTIMIZERS.values(), *SCHEDULES.values())),
]
#: Fields of any type: a teacher is a model, a file or a published name.
FREE = {"teacher", "source"}
OPTIONS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind) if field.name not in FREE]


@pytest.mark.parametrize(("kind", "name"), OPTIONS, ids=[f"{kind.__name__}.{name}" for kind, name in OPTIONS])
def test_values_of_wrong_type_are_errors(kind, name):
    default = getattr(kind(), name)
    for value in ODD:
        try:
            made = getattr(kind(**{name: value}), name)
        except ValueError:
            continue
        if isinstance(default, str | bool):
            assert type(made) is type(default)
        numbers = made if isinstance(made, tuple) else (made,)
        assert all(abs(number) <= sys.float_info.max for number in numbers if isinstance(number, int | float)), (
            f"{name}={value!r}"
        )
        assert not isinstance(default, float) or isinstance(made, int | float)
        assert type(value) is not bool or isinstance(made, bool), f"{name}={value!r} became {made!r}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vt.TrainConfig(optimizer="adam"), "got 'adam'; did you mean 'adamw'?"),
        (lambda: vt.TrainConfig(optimiser="adam"), "use optimizer="),
        (lambda: vt.TrainConfig(optimizer="AdamW"), "did you mean 'adamw'?"),
        (lambda: vt.TrainConfig(optimizer=3), "must be an optimizer's name or options, got 3; known: adamw, muon, sgd"),
        (lambda: vt.TrainConfig(schedule="cosin"), "did you mean 'cosine'?"),
        (lambda: vt.TrainConfig(epochs=1e300), "epochs must be at most 1,000,000"),
        (lambda: vt.TrainConfig(precision="fp16"), "precision must be one of auto, fp32, bf16; got 'fp16'"),
        (lambda: vt.Augment(mixpu=1), "Augment has no option 'mixpu'; did you mean 'mixup'?"),
        (lambda: vt.Augment(flip_rate="half"), "flip_rate must be a number, got 'half'"),
        (lambda: vt.Augment(crop_scale=0.5), "crop_scale must be a sequence of values, got 0.5"),
        (lambda: vt.Augment(pad=2.5), "pad must be a whole number, got 2.5"),
        (lambda: vt.DataConfig(valid="tset"), "did you mean 'test'?"),
        (lambda: vt.Classify(smoothing=1.0), r"smoothing must lie in \[0, 1\), got 1.0"),
        (lambda: Preprocess(crop_ratio=1e-9), r"crop_ratio must lie in \[0.05, 1\], got 1e-09"),
        (lambda: Preprocess(mean=(math.nan,) * 3), "mean needs a finite number per channel"),
        (lambda: Preprocess(std=(1, 1, "x")), "std needs a finite number per channel"),
    ],
)
def test_error_messages(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_augmentation_is_written_and_read_back():
    augment = vt.Augment("pad", crop_scale=[0.5, 1], mixup=1, randaugment_ops=2)
    assert vt.Augment(**json.loads(json.dumps(augment.to_json()))) == augment
