"""Batches are pure functions of (seed, step), and shares of them fit together."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.augment import Augment
from vitreous.data.base import Arrays, FileDataset, one_hot
from vitreous.data.image_files import BadImage
from vitreous.data.loader import EvaluationLoader, Loader
from vitreous.samples import Classes
from vitreous.spec import Preprocess

EVERYTHING = Augment(crop="pad", randaugment_ops=2, erase_rate=0.5, mixup=0.4, cutmix=1.0)
PREPROCESS = Preprocess(image_size=(16, 16), crop_ratio=1.0)


def arrays(number=50):
    pixels = np.random.default_rng(0).integers(0, 256, (number, 3, 16, 16), dtype=np.uint8)
    return Arrays(pixels, one_hot(np.arange(number) % 5, 5), "abcde")


class Drawn(FileDataset):
    """Images of many sizes; some are broken."""

    classes = tuple("abcde")

    def __init__(self, number=30, broken=()):
        self.number, self.broken = number, set(broken)

    def __len__(self):
        return self.number

    def targets(self, indices):
        return Classes(torch.from_numpy(one_hot(indices % 5, 5)))

    def subset(self, indices):
        raise NotImplementedError

    def location(self, index):
        return f"drawn {index}"

    def image(self, index):
        if index in self.broken:
            raise BadImage("broken on purpose")
        return Image.new("RGB", (20 + index, 70 - index), (index * 8, 0, 0))


def loader(data, **options):
    return Loader(data, PREPROCESS, **{"augment": EVERYTHING, "batch_size": 8, "seed": 1} | options)


@pytest.mark.parametrize("data", [arrays(), Drawn()])
def test_a_batch_depends_on_seed_and_step_only(data):
    one, other = loader(data), loader(data)
    later = [batch.images for batch in other.stream(0, 8)][7]
    assert torch.equal(one.batch(7).images, later)
    assert not torch.equal(one.batch(7).images, loader(data, seed=2).batch(7).images)


def test_an_epoch_shows_every_image_once():
    data = arrays(48)
    seen = loader(data, augment=Augment(crop="none", flip_rate=0.0))
    pixels = torch.cat([seen.batch(step).images for step in range(seen.steps_per_epoch)])
    assert len(pixels.flatten(1).unique(dim=0)) == 48
    assert not torch.equal(pixels[:8], seen.batch(seen.steps_per_epoch).images), "the next epoch has another order"


def test_shares_of_two_processes_are_the_batch_of_one():
    whole, data = loader(arrays()).batch(3), arrays()
    halves = [loader(data, rows=rows).batch(3) for rows in (slice(0, 4), slice(4, 8))]
    assert torch.equal(whole.images, torch.cat([half.images for half in halves]))
    assert torch.equal(whole.targets.values, torch.cat([half.targets.values for half in halves]))


@pytest.mark.parametrize("data", [arrays(), Drawn()])
@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_shares_of_any_size_are_the_batch_of_one(data, each):
    """Partners of MixUp belong to another process where a share is odd."""
    whole = loader(data, batch_size=2 * each).batch(1)
    halves = [loader(data, batch_size=2 * each, rows=rows).batch(1) for rows in (slice(0, each), slice(each, 2 * each))]
    assert [len(half) for half in halves] == [each, each]
    assert torch.equal(whole.images, torch.cat([half.images for half in halves]))
    assert torch.equal(whole.targets.values, torch.cat([half.targets.values for half in halves]))


def test_a_share_without_readable_images_borrows_one():
    """As the only image of a process may be broken, while the others compute."""
    plain = Augment(crop="none", flip_rate=0.0)
    data = Drawn(broken=range(0, 30, 2))
    alone = [loader(data, augment=plain, batch_size=2, rows=slice(1, 2)).batch(step) for step in range(15)]
    assert {len(batch) for batch in alone} == {1}
    again = [loader(data, augment=plain, batch_size=2, rows=slice(1, 2)).batch(step) for step in range(15)]
    assert all(torch.equal(one.images, other.images) for one, other in zip(alone, again, strict=True))
    assert all(batch.targets.values.argmax() % 5 in range(5) for batch in alone)


def test_unreadable_images_are_replaced_and_counted():
    data = Drawn(broken=[3, 4])
    one = loader(data)
    batches = list(one.stream(0, one.steps_per_epoch * 2))
    assert all(batch.images.shape == (8, 3, 16, 16) for batch in batches)
    assert one.unreadable == {"drawn 3": "broken on purpose", "drawn 4": "broken on purpose"}


def test_a_stand_in_brings_its_own_label():
    """The red of a drawn image tells which it is."""
    data = Drawn(broken=[3, 4, 11, 12])
    plain = Preprocess(image_size=(16, 16), mean=(0.0,) * 3, std=(1.0,) * 3)
    one = Loader(data, plain, Augment(crop="none", flip_rate=0.0), batch_size=10, seed=1)
    for step in range(6):
        batch = one.batch(step)
        shown = (batch.images[:, 0, 8, 8] * 255 / 8).round().long()
        assert torch.equal(batch.targets.values.argmax(1), shown % 5)


def test_nothing_readable_is_an_error():
    with pytest.raises(ValueError, match=r"none of 8 images could be read: drawn \d+ \(broken on purpose\)"):
        loader(Drawn(broken=range(30))).batch(0)


def test_an_error_in_the_background_is_raised_in_front():
    with pytest.raises(ValueError, match="none of 8"):
        list(loader(Drawn(broken=range(30))).stream(0, 3))


def test_a_small_set_makes_a_small_batch():
    assert loader(arrays(5)).batch(0).images.shape[0] == 5
    with pytest.raises(ValueError, match="larger than the training set"):
        loader(arrays(5), rows=slice(0, 4))


@pytest.mark.parametrize("data", [arrays(), Drawn(50)])
def test_evaluation_keeps_the_order(data):
    parts = list(EvaluationLoader(data, PREPROCESS, batch_size=7))
    assert np.concatenate([indices for indices, _ in parts]).tolist() == list(range(50))
    assert torch.cat([batch.targets.values for _, batch in parts]).argmax(1).tolist() == [i % 5 for i in range(50)]


def test_evaluation_leaves_out_what_cannot_be_read():
    parts = EvaluationLoader(Drawn(10, broken=[0, 7]), PREPROCESS, batch_size=4)
    assert np.concatenate([indices for indices, _ in parts]).tolist() == [1, 2, 3, 4, 5, 6, 8, 9]
    assert len(parts.unreadable) == 2


def test_evaluation_in_step_shows_a_blank_image_where_nothing_can_be_read():
    parts = EvaluationLoader(Drawn(10, broken=range(4)), PREPROCESS, batch_size=4)
    assert [len(rows) for rows, _ in parts.batches(np.arange(10))] == [4, 2]
    shown = list(parts.batches(np.arange(10), skip_empty=False))
    assert [(len(rows), len(batch)) for rows, batch in shown] == [(0, 1), (4, 4), (2, 2)]
    assert shown[0][1].images.shape == (1, 3, 16, 16)
