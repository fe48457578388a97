"""Predictions and embeddings: correct, in order, and robust to unreadable images."""

import io
import json
import random

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from tests.parity import fill
from tests.shared import DEIT_TINY, SHARED, class_of, need_shared
from vitreous.cli import main
from vitreous.deploy.neighbors import duplicates, nearest_neighbors
from vitreous.deploy.predictor import Skipped


@pytest.fixture
def model():
    model = fill(vt.create_model("vit_tiny_16", depth=1, image_size=32, num_classes=4))
    model.name_classes(["ant", "bee", "cat", "dog"])
    return model


def noise_image(seed=0, size=(40, 30)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def test_a_prediction_is_the_softmax_of_the_logits(model):
    predictor = vt.Predictor(model, top=3)
    prediction = predictor(noise_image())
    with torch.no_grad():
        expected = model(vt.transforms(model)(noise_image())[None]).softmax(-1)[0]
    order = expected.argsort(descending=True)[:3].tolist()
    assert prediction.indices == tuple(order)
    assert prediction.classes == tuple(["ant", "bee", "cat", "dog"][i] for i in order)
    assert prediction.probabilities == pytest.approx(expected[order].tolist())
    assert prediction.best == prediction.classes[0]
    assert str(prediction).startswith(f"{prediction.best} ")


def test_an_embedding_is_the_pooled_features_of_length_one(model):
    vector = vt.Predictor(model).embed(noise_image())
    with torch.no_grad():
        expected = model.pooled(model.features(vt.transforms(model)(noise_image())[None]))[0]
    assert vector.shape == (192,)
    assert np.allclose(vector, (expected / expected.norm()).numpy(), atol=1e-5)


def test_predictions_are_in_order_for_any_batch_size(model, tmp_path):
    paths = []
    for index in range(7):
        paths.append(tmp_path / f"{index}.png")
        noise_image(index).save(paths[-1])
    paths[3].write_text("no image")
    answers = [list(vt.Predictor(model, batch_size=size).predict_many(paths)) for size in (1, 2, 32)]
    assert answers[0][3] == answers[1][3] == Skipped("not an image, or damaged at its start")
    for index in (0, 1, 2, 4, 5, 6):
        alone = vt.Predictor(model)(paths[index])
        for batch in answers:
            assert batch[index].classes == alone.classes
            assert batch[index].probabilities == pytest.approx(alone.probabilities, abs=1e-5)


def test_from_a_file_with_its_own_preprocessing(model, tmp_path):
    model.spec = vt.Spec(vt.Preprocess((32, 32), crop_ratio=0.5, mean=(0.5,) * 3, std=(0.25,) * 3), model.spec.labels)
    vt.save(model, tmp_path / "model.safetensors")
    predictor = vt.Predictor(tmp_path / "model.safetensors")
    assert predictor.model.spec == model.spec
    assert predictor(noise_image()).probabilities == pytest.approx(vt.Predictor(model)(noise_image()).probabilities)


def test_a_model_without_a_classifier_can_embed_but_not_predict():
    predictor = vt.Predictor(vt.create_model("vit_tiny_16", depth=1, image_size=32, num_classes=0))
    assert predictor.embed(noise_image()).shape == (192,)
    with pytest.raises(ValueError, match="no classifier"):
        predictor(noise_image())


def test_one_bad_image_is_an_error_that_names_it(model):
    with pytest.raises(ValueError, match=r"nowhere.jpg: there is no such file"):
        vt.Predictor(model)("nowhere.jpg")
    with pytest.raises(ValueError, match=r"a.jpg: there is no such file"):
        vt.Predictor(model)([noise_image(), "a.jpg"])


def test_an_image_in_every_form(model, tmp_path):
    image = noise_image()
    image.save(tmp_path / "image.png")
    pixels = np.asarray(image)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    forms = [tmp_path / "image.png", image, pixels, pixels / 255, tensor, tensor / 255]
    predictor = vt.Predictor(model, batch_size=2)
    expected, vector = predictor(image), predictor.embed(image)
    for form in forms:
        assert predictor(form) == expected
        np.testing.assert_array_equal(predictor.embed(form), vector)
    together = predictor(forms)
    assert isinstance(together, list)
    assert [one.classes for one in together] == [expected.classes] * len(forms)
    assert predictor.embed(forms).shape == (6, 192)
    assert [one.indices for one in predictor(torch.stack([tensor, tensor]))] == [expected.indices] * 2
    assert [one.indices for one in predictor.predict_many(np.stack([pixels] * 3))] == [expected.indices] * 3
    assert predictor([]) == []


def test_folders_and_patterns(model, tmp_path):
    for index in range(3):
        noise_image(index).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("no image")
    predictor = vt.Predictor(model)
    alone = [predictor(tmp_path / f"{index}.png").indices for index in range(3)]
    assert [one.indices for one in predictor.predict_many(str(tmp_path / "*.png"))] == alone
    *found, skipped = predictor.predict_many(tmp_path)
    assert [one.indices for one in found] == alone
    assert isinstance(skipped, Skipped)
    assert len(list(predictor.embed_many(tmp_path / "1.png"))) == 1


def test_a_mistake_is_not_skipped(model):
    """An unreadable file is skipped; an array that is not an image is the caller's error."""
    with pytest.raises(ValueError, match="floats must lie between 0 and 1"):
        list(vt.Predictor(model).predict_many([noise_image(), torch.randn(3, 32, 32)]))


def test_bad_options(model):
    with pytest.raises(ValueError, match="at least 1"):
        vt.Predictor(model, top=0)


def test_real_weights_name_nine_of_ten():
    need_shared()
    predictor = vt.Predictor(DEIT_TINY, model="deit_tiny_16")
    paths = sorted((SHARED / "weights" / "images").glob("*.JPEG"))
    answers = list(predictor.predict_many(paths))
    wrong = {path.stem: a.best for path, a in zip(paths, answers, strict=True) if a.indices[0] != class_of(path.stem)}
    assert wrong == {"n02123045_tabby": "Egyptian cat"}
    assert len(paths) == 10


def mutate(content: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        flipped = bytearray(content)
        for _ in range(rng.randrange(1, 30)):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 2:
        return b""
    if kind == 3:
        return "".join(rng.choices("abc \n", k=rng.randrange(200))).encode()
    if kind == 4:  # the header claims a huge image
        flipped = bytearray(content)
        for at in range(16, 24):
            flipped[at] = rng.randrange(256)
        return bytes(flipped)
    cut = rng.randrange(len(content))
    return content[:cut] + rng.randbytes(rng.randrange(100)) + content[cut:]


def test_a_thousand_mutated_images(model, tmp_path, capsys):
    """No crash; each file gets a prediction or a one-line reason."""
    rng = random.Random(0)
    originals = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
        content = io.BytesIO()
        noise_image(1, (24, 20)).save(content, kind)
        originals.append((content.getvalue(), kind.lower()))
    paths = []
    for index in range(1000):
        content, extension = rng.choice(originals)
        paths.append(tmp_path / f"{index:04}.{rng.choice([extension, 'jpg', 'txt'])}")
        paths[-1].write_bytes(mutate(content, rng))
    vt.save(model, tmp_path / "model.safetensors")
    assert main(["predict", str(tmp_path / "model.safetensors"), *map(str, paths), "--format", "jsonl"]) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["file"] for line in lines] == [str(path) for path in paths]
    reasons = [line["skipped"] for line in lines if "skipped" in line]
    assert 300 < len(reasons) < 950
    assert all(reason and "\n" not in reason for reason in reasons)
    assert all(np.isfinite(line["probabilities"]).all() for line in lines if "classes" in line)
    assert f"skipped {len(reasons)} of 1000 files" in captured.err


def test_neighbors_by_hand():
    vectors = np.array([[1, 0], [0.6, 0.8], [0, 1], [1, 0]], dtype=np.float32)
    nearest = nearest_neighbors(vectors, 2)
    assert [(n.index, round(n.similarity, 3)) for n in nearest[0]] == [(3, 1.0), (1, 0.6)]
    assert [n.index for n in nearest[2]] == [1, 0]
    assert duplicates(vectors, 0.99) == [(0, 3, 1.0)]
    assert [len(line) for line in nearest_neighbors(vectors[:1], 5)] == [0]


def test_neighbors_over_several_chunks_equal_brute_force():
    """With integer vectors, whose products are exact, so that ties are the same on every CPU."""
    vectors = np.random.default_rng(0).integers(-9, 10, (2100, 8)).astype(np.float32)
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    assert [found.index for (found,) in nearest_neighbors(vectors, 1)] == similar.argmax(axis=1).tolist()
    upper = np.argwhere(np.triu(similar, 1) >= 300)
    assert len(upper) > 100
    assert {(a, b) for a, b, _ in duplicates(vectors, 300)} == {(a, b) for a, b in upper}
