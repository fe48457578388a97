"""ImageNet's folders, named by WordNet id, are matched with the classes of models that were trained on it."""

import json
from importlib.resources import files
from types import SimpleNamespace

import pytest
from PIL import Image

import vitreous as vt
from tests.shared import SHARED, need_shared
from vitreous.deploy.evaluate import match_classes
from vitreous.spec import Labels
from vitreous.weights.published import are_imagenet_labels, imagenet_ids, imagenet_labels


def imagenet_model(names=None):
    model = vt.create_model("vit_tiny_16", depth=1, image_size=32)
    model.name_classes(names or imagenet_labels())
    return model


def of(*classes):
    return SimpleNamespace(classes=classes)


def test_the_ids_are_those_of_timm_in_their_order():
    theirs = files("timm.data").joinpath("_info/imagenet_synsets.txt").read_text().split()
    assert list(imagenet_ids()) == theirs == sorted(set(theirs))


def test_ids_stand_where_the_names_do():
    need_shared()
    index = json.loads((SHARED / "data" / "imagenet_class_index.json").read_text())
    assert [wnid for wnid, _ in index.values()] == list(imagenet_ids())


@pytest.mark.parametrize(
    ("classes", "columns"),
    [
        (("n01440764",), [0]),
        (("n02123394", "n01440764", "n15075141"), [283, 0, 999]),
        (("Persian cat", "n01440764"), [283, 0]),
        (("goldfish", "tench"), [1, 0]),
    ],
)
def test_by_id_and_by_name(classes, columns):
    assert match_classes(imagenet_model(), of(*classes)) == columns
    synonyms = [f"{name}, another name" for name in imagenet_labels()]  # as in transformers' files
    if all(name.startswith(("n0", "n1")) for name in classes):
        assert match_classes(imagenet_model(synonyms), of(*classes)) == columns


def test_ids_of_other_classes_are_unknown():
    with pytest.raises(ValueError, match="1 of the data's 2 classes are unknown to the model: n00000001"):
        match_classes(imagenet_model(), of("n01440764", "n00000001"))


def test_names_that_are_not_imagenets_have_no_ids():
    names = [f"class {index}" for index in range(1000)]
    assert are_imagenet_labels(imagenet_labels())
    assert not are_imagenet_labels(Labels(tuple(names)))
    assert not are_imagenet_labels(Labels(imagenet_labels().names[:999]))
    with pytest.raises(ValueError, match="unknown to the model"):
        match_classes(imagenet_model(names), of("n01440764"))


def test_names_that_are_ids_are_matched_as_names():
    backwards = imagenet_ids()[::-1]
    assert match_classes(imagenet_model(backwards), of("n01440764")) == [999]


def test_evaluation_on_such_folders(tmp_path):
    for wnid, shade in (("n01440764", 40), ("n01443537", 200)):
        (tmp_path / wnid).mkdir()
        Image.new("RGB", (32, 32), (shade,) * 3).save(tmp_path / wnid / "image.png")
    found = vt.evaluate(imagenet_model(), tmp_path)
    assert found.classes == ("n01440764", "n01443537")
    assert len(found.meter) == 2
