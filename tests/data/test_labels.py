"""Class labels are kept small, and what is asked of them equals what their rows would answer."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.cli.contact_sheet import examples_of
from vitreous.data import labels as labels_module
from vitreous.data.augment import Augment
from vitreous.data.base import ArrayDataset, Arrays, class_vectors, one_hot
from vitreous.data.folder import PathDataset
from vitreous.data.inspect import class_counts, label
from vitreous.data.labels import class_indices, dataset_positive_pairs, normalize_labels, to_label_sets
from vitreous.data.loader import Loader
from vitreous.data.memory import DecodedDataset
from vitreous.data.pack import targets_to_json
from vitreous.data.splits import hold_out_mask, keep_one_of_each, rarest_labels
from vitreous.samples import Classes, MultiLabels
from vitreous.spec import Preprocess

RNG = np.random.default_rng(0)
NUMBERS = RNG.integers(0, 7, 40)
SETS = [tuple(np.flatnonzero(row)) for row in RNG.random((40, 7)) < 0.2]
ROWS = np.where(RNG.random((40, 7)) < 0.2, np.nan, RNG.random((40, 7))).astype(np.float32)


class ByRows(ArrayDataset):
    """A dataset of somebody else's, that knows its targets as rows only."""

    image_size, num_channels, classes = (1, 1), 1, tuple("abcdefg")

    def __init__(self, targets):
        self.all, self.target = targets, type(targets)

    def __len__(self):
        return len(self.all)

    def pixels(self, indices):
        return np.zeros((len(indices), 1, 1, 1), dtype=np.uint8)

    def targets(self, indices):
        return self.all.take(torch.from_numpy(indices))

    def subset(self, indices):
        return ByRows(self.targets(indices))


def files(labels, target=MultiLabels):
    return PathDataset(["x"] * len(labels), labels, tuple("abcdefg"), target=target)


def naive_rarest(data):
    has = class_vectors(data, np.arange(len(data))) > 0.5
    rarity = np.where(has, has.sum(axis=0), len(data) + 1)
    return np.where(has.any(axis=1), rarity.argmin(axis=1), -1)


KEPT = {"numbers": (NUMBERS, Classes), "sets": (to_label_sets(SETS), MultiLabels), "rows": (ROWS, MultiLabels)}


@pytest.mark.parametrize("cells", [2**24, 20])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_small_answers_as_rows_do(monkeypatch, kind, cells):
    monkeypatch.setattr(labels_module, "MAX_CHUNK_VALUES", cells)  # chunks of all images, or of two
    small = files(*KEPT[kind])
    rows = ByRows(small.targets(np.arange(40)))
    assert rows.target is small.target
    assert [column.tolist() for column in dataset_positive_pairs(small)] == [
        column.tolist() for column in dataset_positive_pairs(rows)
    ]
    assert class_indices(small).tolist() == class_indices(rows).tolist()
    assert class_counts(small).tolist() == (class_vectors(rows, np.arange(40)) > 0.5).sum(0).tolist()
    assert rarest_labels(small).tolist() == naive_rarest(rows).tolist()
    assert hold_out_mask(small, 0.3, 5).tolist() == hold_out_mask(rows, 0.3, 5).tolist()
    assert [label(small, index) for index in range(40)] == [label(rows, index) for index in range(40)]
    assert examples_of(small, [1, 4], 3) == examples_of(rows, [1, 4], 3)
    assert targets_to_json(small, np.arange(40)) == targets_to_json(rows, np.arange(40))
    part = small.subset(np.array([7, 3]))
    assert torch.equal(part.targets(np.arange(2)).values.nan_to_num(9), rows.all.values[[7, 3]].nan_to_num(9))


@pytest.mark.parametrize("kind", ["sets", "rows"])
def test_of_each_label_one_is_given_back(kind):
    data, held = files(*KEPT[kind]), RNG.random(40) < 0.8
    has = class_vectors(data, np.arange(40)) > 0.5
    expected = held.copy()
    for number in np.flatnonzero(has.any(axis=0) & ~has[~held].any(axis=0)):
        expected[np.flatnonzero(has[:, number])[0]] = False
    keep_one_of_each(data, held)
    assert held.tolist() == expected.tolist()


@pytest.mark.parametrize("targets", ["numbers", "rows", "targets"])
def test_classes_in_memory_are_kept_as_numbers(targets):
    rows = one_hot(NUMBERS, 7)
    given = {"numbers": NUMBERS, "rows": rows, "targets": Classes(torch.from_numpy(rows))}[targets]
    data = Arrays(np.zeros((40, 1, 2, 2), np.uint8), given, "abcdefg").subset(np.arange(5, 30))
    assert data.stored.dtype == np.int64
    assert data.stored.shape == (25,)
    assert torch.equal(data.targets(np.arange(3)).values, torch.from_numpy(rows[5:8]))
    assert torch.equal(data.all_targets.values, torch.from_numpy(rows[5:30]))


def test_other_targets_stay_as_they_are():
    images = np.zeros((40, 1, 2, 2), np.uint8)
    shares = (ROWS.T / np.nansum(ROWS, axis=1)).T
    for targets in (Classes(torch.from_numpy(shares)), MultiLabels(torch.from_numpy(one_hot(NUMBERS, 7)))):
        assert Arrays(images, targets, "abcdefg").stored is targets


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 7]), "label 7 of image 1 is out of range"),
        (np.array([0.5, 1]), "must be class indices"),
        (to_label_sets([(0,), (9,)]), "label 9"),
        (np.zeros((2, 3, 4)), "must be class indices"),
    ],
)
def test_labels_that_are_none(labels, message):
    with pytest.raises(ValueError, match=message):
        normalize_labels(labels, 7)


def test_fifty_thousand_classes_fit_into_memory(tmp_path, monkeypatch):
    """As rows these targets would fill ten gigabytes; no more than a chunk of them is ever made."""
    number = 50_000
    classes = [str(index) for index in range(number)]
    data = PathDataset(["x"] * number, np.arange(number), classes)
    decoded = DecodedDataset([Image.new("L", (8, 8))] * number, data)
    arrays = Arrays(np.zeros((number, 1, 8, 8), np.uint8), np.arange(number), classes)
    monkeypatch.setattr(labels_module, "to_class_vectors", lambda *labels: pytest.fail("rows were made"))
    for dataset in (data, decoded, arrays):
        assert class_counts(dataset).tolist() == [1] * number
        assert len(class_indices(dataset)) == len(rarest_labels(dataset)) == number
    assert data.labels.nbytes == arrays.stored.nbytes == 8 * number
    for dataset in (decoded, arrays):
        loader = Loader(dataset, Preprocess((8, 8), mean=(0.5,), std=(0.5,)), Augment(), batch_size=4)
        assert loader.batch(0).targets.values.shape == (4, number)
