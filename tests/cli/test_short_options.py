"""Short options of ``vitreous train`` mean the long ones."""

import shlex

import pytest

from vitreous.cli.short_options import SHORT_OPTIONS, expand_short_options
from vitreous.cli.train import apply_options
from vitreous.runs.recipe import find_recipe

CASES = [
    ("--epochs 3", "--train.epochs 3"),
    ("--lr=5e-4", "--train.optimizer.lr 5e-4"),
    ("--batch-size 8 --seed 1", "--train.batch-size 8 --train.seed 1"),
    ("--image-size 32 64 --train.steps 5", "--model.image-size 32 64 --train.steps 5"),
    ("--model.image-size 64", "--model.image-size 64 64"),
    ("--model.depth 2", "--model.depth 2"),
]


@pytest.mark.parametrize(("short", "full"), CASES)
def test_expansion(short, full):
    assert expand_short_options(short.split()) == full.split()


def test_they_reach_the_recipe():
    recipe = find_recipe("shapes_family")
    words = "--steps 7 --lr 5e-4 --weight-decay 0.1 --batch-size 8 --seed 3 --device cpu --image-size 32"
    found = apply_options(recipe, shlex.split(words), "vitreous train")
    train = found.train
    assert (train.steps, train.batch_size, train.seed, train.device) == (7, 8, 3, "cpu")
    assert (train.optimizer.lr, train.optimizer.weight_decay) == (5e-4, 0.1)
    assert found.model.image_size == (32, 32)
    assert len(SHORT_OPTIONS) == 8
