"""``vt.evaluate`` on any kind of data, with classes matched by name, at any resolution."""

import numpy as np
import pytest
import torch

import vitreous as vt
from vitreous.data.base import Arrays, one_hot

CLASSES = ("ant", "bee", "cat")


def model(names=CLASSES, **options):
    small = {"image_size": 16, "patch_size": 8, "dim": 32, "depth": 1, "num_heads": 2}
    result = vt.create_model("vit_tiny_16", num_classes=len(names), **small | options)
    result.name_classes(names)
    return result


def data(number=30, classes=CLASSES):
    pixels = np.random.default_rng(0).integers(0, 256, (number, 3, 16, 16), dtype=np.uint8)
    return Arrays(pixels, one_hot(np.arange(number) % len(classes), len(classes)), classes)


def test_numbers_agree_with_the_logits():
    net = model()
    found = vt.evaluate(net, data())
    answers = found.arrays["logits"].argmax(1)
    labels = np.arange(30) % 3
    assert found.metrics["accuracy"] == pytest.approx((answers == labels).mean())
    assert found.confusion.sum() == 30
    assert found.confusion[1, 2] == ((labels == 1) & (answers == 2)).sum()
    assert found.per_class.support.tolist() == [10, 10, 10]
    assert found.images_per_second > 0


def test_classes_are_matched_by_name():
    net = model(("cat", "dog", "ant", "bee"))
    straight, turned = vt.evaluate(net, data()), data()
    images = torch.randn(1, 3, 16, 16)
    assert net(images).shape == (1, 4)
    assert straight.arrays["logits"].shape == (30, 3)
    np.testing.assert_allclose(straight.arrays["logits"], full_logits(net, turned)[:, [2, 3, 0]], atol=1e-6)


def full_logits(net, dataset):
    net.spec = vt.Spec(net.spec.preprocess)
    wide = Arrays(dataset.images, np.eye(4, dtype=np.float32)[np.zeros(30, int)], tuple("wxyz"))
    return vt.evaluate(net, wide).arrays["logits"]


def test_another_resolution():
    net = model()
    larger = vt.evaluate(net, data(), image_size=32)
    assert larger.image_size == (32, 32)
    assert not np.allclose(larger.arrays["logits"], vt.evaluate(net, data()).arrays["logits"])


@pytest.mark.parametrize(
    ("net", "source", "message"),
    [
        (model(("a", "b", "c")), data(), "3 of the data's 3 classes are unknown to the model: ant, bee, cat"),
        (vt.create_model("vit_tiny_16", depth=1), data(), "1000 unnamed classes, the data 3"),
        (model(), "no/such/folder", "no/such/folder"),
    ],
)
def test_mismatches_are_reported(net, source, message):
    with pytest.raises(ValueError, match=message):
        vt.evaluate(net, source)


def test_a_plain_folder_is_used_whole(tmp_path):
    from PIL import Image

    for name in CLASSES:
        (tmp_path / name).mkdir()
        for index in range(10):
            Image.new("RGB", (20, 20), (index * 20, 0, 0)).save(tmp_path / name / f"{index}.png")
    assert len(vt.evaluate(model(), tmp_path).meter) == 30
    assert len(vt.evaluate(model(), tmp_path, split="valid").meter) == 4, "about a tenth, by name"


def test_a_missing_split_names_those_there_are():
    net = model(vt.Shapes.classes)
    with pytest.raises(ValueError, match="split must be train, valid or test, got 'dev'"):
        vt.evaluate(net, "shapes", split="dev")


@pytest.mark.parametrize("names", [CLASSES, ()])
def test_a_foreign_dataset_measures_the_same(names):
    net, ours = model(), data()
    net.spec = vt.Spec(net.spec.preprocess, vt.Labels(names))
    pairs = [(ours.pixels(np.array([index]))[0], index % 3) for index in range(30)]
    np.testing.assert_allclose(
        vt.evaluate(net, pairs).arrays["logits"], vt.evaluate(net, ours).arrays["logits"], atol=1e-6
    )
    assert vt.evaluate(net, pairs).metrics == pytest.approx(vt.evaluate(net, ours).metrics)


def test_foreign_classes_are_matched_by_name():
    net = model(("cat", "dog", "ant", "bee"))
    pairs = [(data().pixels(np.array([index]))[0], CLASSES[index % 3]) for index in range(30)]
    assert vt.evaluate(net, pairs).metrics == pytest.approx(vt.evaluate(net, data()).metrics)


def test_splits_are_chosen_from():
    splits = vt.Splits(data(30), data(9), data(12))
    assert len(vt.evaluate(model(), splits).meter) == 12
    assert len(vt.evaluate(model(), splits, split="valid").meter) == 9
