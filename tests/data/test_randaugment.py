"""RandAugment on a batch: torchvision's operations, and no image that knows of the others."""

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

from vitreous.data.augment import Augment, Draws
from vitreous.data.randaugment import MAX_MAGNITUDE, OPERATIONS, SIGNED, randaugment
from vitreous.samples import Classes

THEIRS = v2.RandAugment()


def noise(number=1, channels=3, side=32):
    pixels = np.random.default_rng(0).integers(0, 200, (number, channels, side, side), dtype=np.uint8)
    return torch.from_numpy(pixels)


def sample(number, rows=slice(None)):
    return Draws.sample(0, 0, 5, number, rows)


def changed(images, augment, draws):
    return randaugment(images, Classes(torch.eye(len(images))), augment, draws)[0]


def torchvisions(name, images, magnitude, sign):
    magnitudes, signed = THEIRS._AUGMENTATION_SPACE[name]
    values = magnitudes(MAX_MAGNITUDE + 1, *images.shape[-2:])
    assert signed == (name in SIGNED)
    strength = 0.0 if values is None else sign * float(values[magnitude])
    return THEIRS._apply_image_or_video_transform(
        images, name, strength, interpolation=InterpolationMode.NEAREST, fill={torch.Tensor: None}
    )


def test_the_operations_are_torchvisions():
    assert set(OPERATIONS) == set(THEIRS._AUGMENTATION_SPACE)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("magnitude", [0, 5, 9, 14, 30])
def test_each_operation_equals_torchvisions(name, magnitude):
    images = noise(3)
    for sign in (1, -1) if name in SIGNED else (1,):
        ours = OPERATIONS[name](images, sign * magnitude / MAX_MAGNITUDE)
        assert ours.dtype == torch.uint8
        assert (ours != torchvisions(name, images, magnitude, sign)).float().mean() < 0.01


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("ops", [1, 2])
def test_no_image_knows_of_the_others(channels, ops):
    images, augment = noise(60, channels), Augment(randaugment_ops=ops, randaugment_magnitude=12)
    together = changed(images, augment, sample(60))
    for row in range(60):
        alone = changed(images[row : row + 1], augment, sample(60).row(row))
        assert torch.equal(alone[0], together[row])


def test_every_operation_has_its_turn():
    """The same image many times: as many results as operations, signs counted; Equalize and the like once."""
    images = noise().expand(1000, -1, -1, -1).contiguous()
    before = images.clone()
    results = changed(images, Augment(randaugment_ops=1, randaugment_magnitude=12), sample(1000))
    _, counts = results.flatten(1).unique(dim=0, return_counts=True)
    assert len(counts) == len(OPERATIONS) + len(SIGNED)
    assert counts.max() < 2.5 * 1000 / len(OPERATIONS)
    assert torch.equal(images, before)


def test_none_and_odd_channels():
    images = noise(2)
    assert changed(images, Augment(), sample(2)) is images
    with pytest.raises(ValueError, match="these have 4 channels; set randaugment_ops to 0"):
        changed(noise(2, channels=4), Augment(randaugment_ops=1), sample(2))
