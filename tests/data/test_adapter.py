"""Other people's datasets: their targets are read as ours, and mistakes are named with their index."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset
from torchvision import tv_tensors
from torchvision.datasets import FakeData, ImageFolder

from vitreous.data.adapter import adapt
from vitreous.data.foreign import describe, is_described, is_foreign, require_dataset
from vitreous.data.image_files import BadImage
from vitreous.samples import Boxes, Classes, Masks, MultiLabels

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 20, 3), dtype=np.uint8)


class Own(torch.utils.data.Dataset):
    """Images with the targets that a function makes of their index."""

    def __init__(self, target, number=12, **more):
        self.target, self.number = target, number
        vars(self).update(more)

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return PIXELS[index], self.target(index)


def one_hot(index):
    return np.eye(3)[index % 3]


def several(index):
    return [1.0, float(index % 2), 0.0]


EVERY = np.arange(12)


@pytest.mark.parametrize(
    ("target", "kind", "rows"),
    [
        (lambda i: i % 3, Classes, np.eye(3)[EVERY % 3]),
        (lambda i: np.int64(i % 3), Classes, np.eye(3)[EVERY % 3]),
        (lambda i: torch.tensor(i % 3), Classes, np.eye(3)[EVERY % 3]),
        (lambda i: np.array([i % 3]), Classes, np.eye(3)[EVERY % 3]),
        (lambda i: "abc"[i % 3], Classes, np.eye(3)[EVERY % 3]),
        (one_hot, Classes, np.eye(3)[EVERY % 3]),
        (lambda i: torch.tensor([0.25, 0.75]), Classes, np.tile([0.25, 0.75], (12, 1))),
        (several, MultiLabels, np.array([several(i) for i in EVERY])),
        (lambda i: torch.tensor([1, 1, i % 2]), MultiLabels, np.array([[1, 1, i % 2] for i in EVERY])),
    ],
)
def test_labels_in_every_form(target, kind, rows):
    (data,) = adapt(Own(target))
    assert data.target is kind
    np.testing.assert_allclose(data.targets(EVERY).values.numpy(), rows)
    part = data.subset(np.array([7, 2]))
    np.testing.assert_allclose(part.targets(np.arange(2)).values.numpy(), rows[[7, 2]])
    np.testing.assert_array_equal(np.asarray(part.image(0)), PIXELS[7])
    assert part.location(1) == "Own[2]"


def test_one_label_per_image_can_be_learned_as_several():
    (data,) = adapt(Own(one_hot), target=MultiLabels)
    assert data.target is MultiLabels


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, lambda m: torch.from_numpy(m)[None], Image.fromarray])
def test_masks(form):
    masks = np.random.default_rng(1).integers(0, 4, (12, 16, 20), dtype=np.uint8)
    masks[0, 0, 0] = 255
    (data,) = adapt(Own(lambda i: form(masks[i])))
    assert data.target is Masks
    assert data.classes == ("0", "1", "2", "3")
    assert torch.equal(data.targets(EVERY).values, torch.from_numpy(masks))


def test_boxes_as_torchvision_gives_them():
    def target(index):
        boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYWH", canvas_size=(16, 20))
        return {"boxes": boxes, "labels": torch.tensor([index % 2])}

    (data,) = adapt(Own(target))
    assert data.target is Boxes
    found = data.targets(np.array([3]))
    assert found.boxes[0].tolist() == [[1, 2, 4, 6]]
    assert found.classes[0].tolist() == [1]
    found.check([(16, 20)], len(data.classes))


def label(index):
    return index % 2


@pytest.mark.parametrize(
    ("dataset", "more", "classes"),
    [
        (Own(label), {}, ("0", "1")),
        (Own(label, classes=["cat", "dog"]), {}, ("cat", "dog")),
        (Own(label, classes=["cat", "dog", "eel"]), {}, ("cat", "dog", "eel")),
        (Own(label, classes=[("cat", "felis"), ("dog", "canis")]), {}, ("cat", "dog")),
        (Own(label, class_to_idx={"dog": 1, "cat": 0}), {}, ("cat", "dog")),
        (Own(label, num_classes=3), {}, ("0", "1", "2")),
        (Own(label), {"classes": ("ant", "bee"), "num_classes": 2}, ("ant", "bee")),
        (Own(label), {"classes": ("ant", "bee", "cow")}, ("0", "1")),
        (Own(label, classes=["cat", "dog"]), {"classes": ("ant", "bee")}, ("cat", "dog")),
        (Own(lambda i: "dog" if i else "cat"), {}, ("cat", "dog")),
        (Subset(Own(label, classes=["cat", "dog"]), [0, 2]), {}, ("cat", "dog")),
        (ConcatDataset([Own(label, classes=["cat", "dog"])] * 2), {}, ("cat", "dog")),
    ],
)
def test_names_of_classes(dataset, more, classes):
    (data,) = adapt(dataset, **more)
    assert data.classes == classes


def test_training_and_validation_share_their_classes():
    train, valid = adapt(Own(lambda i: i % 2), Own(lambda i: 4))
    assert train.classes == valid.classes == ("0", "1", "2", "3", "4")
    with pytest.raises(ValueError, match="the same classes"):
        adapt(Own(label, classes=["a", "b"]), Own(label, classes=["b", "a"]))


def test_files_keep_their_names(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(PIXELS[0]).save(tmp_path / name / "1.png")
    folder = ImageFolder(str(tmp_path))
    (data,) = adapt(folder)
    assert data.location(1) == str(tmp_path / "dog" / "1.png")
    (part,) = adapt(Subset(folder, [1]))
    assert part.location(0) == str(tmp_path / "dog" / "1.png")
    (both,) = adapt(ConcatDataset([folder, folder]))
    assert both.location(3) == str(tmp_path / "dog" / "1.png")


def test_stored_targets_save_a_pass_only_where_they_agree_with_the_items():
    class Counting(Own):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            return PIXELS[index % 12], self.target(index)

    honest = Counting(label, 1000, targets=[label(i) for i in range(1000)])
    (data,) = adapt(honest)
    assert honest.asked < 50
    lying = Counting(lambda i: 1 - label(i), 200, targets=[label(i) for i in range(200)])
    (other,) = adapt(lying)
    assert lying.asked >= 200
    assert data.targets(EVERY).values.argmax(1).tolist() == [i % 2 for i in EVERY]
    assert other.targets(EVERY).values.argmax(1).tolist() == [1 - i % 2 for i in EVERY]


def test_what_changes_from_time_to_time_is_noticed():
    class Cropped(Own):
        def __getitem__(self, index):
            start = random.randrange(8)
            return PIXELS[index, start : start + 8], self.target(index)

    (data,) = adapt(Cropped(label))
    assert data.random_images
    assert "its images differ each time they are read" in data.notes[0]
    with pytest.raises(ValueError, match="differ each time they are read, so images and a mask"):
        adapt(Cropped(lambda i: np.zeros((8, 20), np.uint8)))
    (fixed,) = adapt(Own(label))
    assert not fixed.random_images
    assert fixed.notes == ()


def test_files_that_cannot_be_read_are_left_out_or_counted():
    class Damaged(Own):
        def __getitem__(self, index):
            if index == 3:
                raise OSError("image file is truncated")
            return super().__getitem__(index)

    (data,) = adapt(Damaged(label))
    assert len(data) == 11
    assert "1 could not be read and were left out, e.g. Damaged[3] (OSError: image file is truncated)" in data.notes[0]
    (stored,) = adapt(Damaged(label, targets=[label(i) for i in EVERY]))
    assert len(stored) == 12
    with pytest.raises(BadImage, match="truncated"):
        stored.image(3)


def noise(index):
    raise KeyError("size")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Own(noise), r"Own\[0\] raised KeyError: 'size'"),
        (Own(lambda i: None), r"Own\[0\]: a target is a class index or name, .* got NoneType"),
        (Own(lambda i: 0.5), r"Own\[0\]: a class index must be a whole number, got 0.5"),
        (Own(lambda i: i if i else "x"), "all targets must be of one kind, got names, numbers"),
        (Own(lambda i: [1, 0, 0][: 2 + i % 2]), "equally long"),
        (Own(lambda i: [0.2, 0.2]), "a target vector must hold 0 and 1"),
        (Own(lambda i: np.zeros((16, 20))), "a mask holds integer class indices, got float64"),
        (
            Own(lambda i: np.full((16, 20), 300)),
            "255 for ignored pixels; got values from 300 to 300",
        ),
        (Own(lambda i: Image.new("RGB", (20, 16))), "one class index per pixel, got an image of 3 channels"),
        (Own(lambda i: {"bbox": [1, 2, 3, 4]}), r"a dict must have boxes and labels, got bbox"),
        (Own(lambda i: {"boxes": torch.zeros(2, 4), "labels": [1]}), "2 boxes, but 1 labels"),
        (Own(lambda i: i - 1), "label -1 of image 0 is out of range"),
        (Own(label, 0), "the dataset is empty"),
        ([(PIXELS[0], 0, "more")], r"list\[0\] must be \(image, target\), got tuple of 3"),
        ([(PIXELS[0][..., :2], 0)], r"list\[0\]: an image must have 1, 3 or 4 channels"),
        (
            TensorDataset(torch.randn(4, 3, 8, 8), torch.arange(4)),
            r"TensorDataset\[0\]: floats must lie between 0 and 1",
        ),
    ],
)
def test_mistakes_are_named(dataset, message):
    with pytest.raises(ValueError, match=message):
        adapt(dataset)


def test_what_a_dataset_is_called():
    fake = FakeData(size=200)
    assert describe(fake) == "torchvision.datasets.FakeData with 200 images"
    assert describe(Subset(fake, [1])) == "torch.utils.data.Subset of torchvision.datasets.FakeData with 1 image"
    assert is_described(describe(fake))
    assert is_described(f"{describe(fake)}; valid: photos/with 3 images")
    assert not is_described("photos/with 3 cats")


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(FakeData(4)), r"a DataLoader, .* pass its dataset \(loader.dataset\)"),
        (Endless(), "must have a length and items by index, got the IterableDataset Endless"),
        (PIXELS, "got ndarray"),
        (FakeData, "got type"),
        (5, "data is a path, .* got int"),
        ({"train": FakeData(4)}, "got dict"),
    ],
)
def test_what_is_no_dataset_is_said(data, message):
    assert not is_foreign(data)
    with pytest.raises(ValueError, match=message):
        require_dataset(data)
