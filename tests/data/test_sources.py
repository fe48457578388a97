"""Any source opens by its content; what is held out is fair, repeatable and never the last of its class."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.data.base import Arrays, class_vectors, one_hot
from vitreous.data.folder import PathDataset
from vitreous.data.memory import decode_into_memory, estimate_memory, unreadable_message
from vitreous.data.shapes import Shapes
from vitreous.data.sources import open_data
from vitreous.data.splits import hold_out_mask
from vitreous.samples import MultiLabels


def classes_of(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    return Arrays(np.zeros((len(labels), 1, 1, 1), np.uint8), one_hot(labels, len(counts)), list(map(str, counts)))


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6), share=st.floats(0.01, 0.99), seed=st.integers(0, 99)
)
def test_holding_out_keeps_every_class_in_training(counts, share, seed):
    data = classes_of(counts)
    held = hold_out_mask(data, share, seed)
    kept = class_vectors(data, np.flatnonzero(~held)).sum(0)
    assert (kept >= 1).all()
    expected = [min(max(1, round(share * count)), count - 1) for count in counts]
    assert class_vectors(data, np.flatnonzero(held)).sum(0).tolist() == expected
    assert np.array_equal(held, hold_out_mask(data, share, seed))


def test_another_seed_holds_out_others():
    data = classes_of([100, 100])
    assert not np.array_equal(hold_out_mask(data, 0.1, 0), hold_out_mask(data, 0.1, 1))


@given(
    rows=st.lists(st.lists(st.sampled_from([0.0, 1.0, np.nan]), min_size=4, max_size=4), min_size=2, max_size=30),
    share=st.floats(0.05, 0.95),
)
def test_several_labels_are_held_out_fairly_too(rows, share):
    targets = np.array(rows, dtype=np.float32)
    data = Arrays(np.zeros((len(rows), 1, 1, 1), np.uint8), MultiLabels(torch.from_numpy(targets)), "abcd")
    held = hold_out_mask(data, share, 0)
    assert np.array_equal((targets[~held] == 1).any(0), (targets == 1).any(0))


def test_rare_labels_reach_validation():
    targets = np.zeros((1000, 2), dtype=np.float32)
    targets[:, 0], targets[:10, 1] = 1, 1
    data = Arrays(np.zeros((1000, 1, 1, 1), np.uint8), MultiLabels(torch.from_numpy(targets)), "ab")
    assert class_vectors(data, np.flatnonzero(hold_out_mask(data, 0.1, 0))).sum(0).tolist() == [100, 1]


def test_shapes_have_splits_of_their_own():
    splits = open_data("shapes", image_size=(32, 48), seed=3)
    assert [len(part) for part in splits.parts().values()] == [50_000, 2_000, 10_000]
    chosen = np.array([5, 49_999])
    scenes = Shapes(50_000, (32, 48), seed=3).batch(chosen)
    assert np.array_equal(splits.train.pixels(chosen), scenes.images)
    assert np.array_equal(class_vectors(splits.train, chosen).argmax(1), scenes.labels)
    part = splits.train.subset(np.array([7, 5]))
    assert np.array_equal(part.pixels(np.array([1])), scenes.images[:1])
    assert part.location(1) == "scene 5 of seed 3"
    first = [part.pixels(np.array([0])).tobytes() for part in splits.parts().values()]
    assert len(set(first)) == 3
    assert np.array_equal(
        open_data("shapes", image_size=(32, 48)).test.pixels(chosen % 9), splits.test.pixels(chosen % 9)
    )


def test_what_is_held_out_is_said():
    splits = open_data("digits", valid_share=0.2)
    assert splits.notes == (f"no validation split: 20% of each class held out ({len(splits.valid):,} images)",)
    assert len(splits.train) + len(splits.valid) == 1797
    assert open_data("digits", valid_share=0).valid is None


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("shaeps", {}, r"there is no 'shaeps' \(did you mean 'shapes'\?\); data is one of: 'shapes'; 'digits'; CIFAR"),
        ("no/such/place", {}, "there is no 'no/such/place'; data is one of"),
        (__file__, {}, "cannot recognize the data format of"),
        ("digits", {"valid_share": 1}, r"valid_share must lie in \[0, 1\), got 1"),
        ("shapes", {"image_size": (0, 3)}, "image_size must be a positive int"),
    ],
)
def test_errors_list_what_is_accepted(source, options, message):
    with pytest.raises(ValueError, match=message):
        open_data(source, **options)


def test_a_class_of_one_is_not_held_out(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    splits = open_data(tmp_path)
    assert splits.valid is None
    assert "no class has enough images" in splits.notes[0]


@pytest.fixture
def files(tmp_path):
    """A wide, a tall and a gray image whose middle is white, and two that cannot be read."""
    for index, size in enumerate([(40, 20), (20, 40), (30, 30)]):
        image = Image.new("L" if index == 2 else "RGB", size)
        box = (size[0] // 2 - 5, size[1] // 2 - 5, size[0] // 2 + 5, size[1] // 2 + 5)
        image.paste("white", box)
        image.save(tmp_path / f"{index}.png")
    (tmp_path / "1a.png").write_text("no image")
    paths = [tmp_path / name for name in ("0.png", "1.png", "1a.png", "2.png", "gone.png")]
    return PathDataset(paths, np.array([0, 1, 0, 2, 1]), "xyz")


def test_in_memory(files):
    """Decoded once and kept whole, so that everything later sees the very same image."""
    seen = []
    decoded, broken = decode_into_memory(files, progress=lambda *step: seen.append(step))
    assert len(decoded) == 3
    assert [decoded.image(index).size for index in range(3)] == [(40, 20), (20, 40), (30, 30)]
    assert class_vectors(decoded, np.arange(3)).argmax(1).tolist() == [0, 1, 2]
    assert decoded.location(2) == files.location(3)
    for index, kept in enumerate((0, 1, 3)):
        assert decoded.image(index).tobytes() == files.image(kept).tobytes()
    part = decoded.subset(np.array([2, 0]))
    assert [part.location(index) for index in range(2)] == [files.location(3), files.location(0)]
    assert class_vectors(part, np.arange(2)).argmax(1).tolist() == [2, 0]
    assert part.image(1) is decoded.image(0), "not decoded again"
    assert [location for location, _ in broken] == [files.location(2), files.location(4)]
    assert seen == [(done, 5) for done in range(1, 6)]
    assert estimate_memory(files) == round((2 * 40 * 20 * 3 + 30 * 30) / 3 * 5), (
        "those that cannot be read are estimated"
    )
    sentence = unreadable_message(broken, 1000)
    assert sentence.startswith(f"2 of 1,000 files could not be read: {files.location(2)} (not an image")
    assert sentence.endswith("and 1 more")


def test_nothing_to_keep_in_memory(files):
    with pytest.raises(ValueError, match="no image could be read; 1 of 1 files"):
        decode_into_memory(files.subset(np.array([2])))
