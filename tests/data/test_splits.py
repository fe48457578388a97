"""What is held out depends on an image's own name: others may come, go or be renamed."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.data.base import Arrays, one_hot
from vitreous.data.folder import PathDataset
from vitreous.data.sources import open_data
from vitreous.data.splits import Splits, hash_to_unit, hold_out, hold_out_mask, hold_out_mask_by_name, stable_names
from vitreous.samples import MultiLabels

HELD = "a/0.png a/1.png a/15.png a/17.png a/2.png a/4.png a/5.png b/11.png b/14.png b/15.png b/2.png b/3.png"

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def files(names, classes="abcde"):
    labels = np.array([classes.index(name[0]) for name in names])
    return PathDataset([f"root/{name}" for name in names], labels, classes)


def held(names, share=0.2, seed=0):
    found = hold_out_mask_by_name(files(names), names, share, seed)
    return {name for name, out in zip(names, found, strict=True) if out}


def named(counts):
    return [f"{'abcde'[number]}/{index}.png" for number, count in enumerate(counts) for index in range(count)]


@given(counts=COUNTS, share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_every_class_is_learned_and_validated(counts, share, seed):
    out = held(named(counts), share, seed)
    for letter, count in zip("abcde", counts, strict=False):
        assert min(1, count - 1) <= sum(name[0] == letter for name in out) <= max(0, count - 1)


@given(counts=COUNTS, extra=COUNTS, seed=st.integers(0, 9))
def test_nothing_that_was_trained_on_is_held_out_when_images_are_added(counts, extra, seed):
    names = named(counts)
    more = [f"{'abcde'[number]}/!{index}.png" for number, count in enumerate(extra) for index in range(count)]
    before, after = held(names, seed=seed), held(sorted(names + more), seed=seed)
    given_back = {name[0] for name in names if hash_to_unit(f"{seed}/{name}") < 0.2 and name not in before}
    given_back |= {letter for letter, count in zip("abcde", counts, strict=False) if count == 1}
    assert {name for name in after & set(names) if name[0] not in given_back} <= before
    enough = [name for name in before if hash_to_unit(f"{seed}/{name}") < 0.2]
    assert set(enough) <= after, "only a stand-in for a class without any goes back to training"


def test_others_stay_where_they_are():
    names = named([300, 300, 300])
    before = held(names)
    assert held(names[:200] + names[300:]) == {name for name in before if name not in names[200:300]}
    renamed = [name.replace("b/", "e/") for name in names]
    assert {name for name in held(renamed) if name[0] != "e"} == {name for name in before if name[0] != "b"}


def test_about_the_share_by_seed():
    names = named([5000, 5000])
    assert len(held(names, 0.1)) == pytest.approx(1000, rel=0.1)
    assert held(names, 0.1) != held(names, 0.1, seed=1)
    assert held(names, 0.1) < held(names, 0.2)


def test_the_digest_stays_what_it_is():
    """Runs of today are resumed by later versions."""
    assert (
        hash_to_unit("0/cat/1.png")
        == int.from_bytes(hashlib.blake2b(b"0/cat/1.png", digest_size=8).digest()) // 2**11 / 2**53
    )
    assert held(named([20, 20]), 0.2) == set(HELD.split())


def test_several_labels_are_all_learned():
    names = [f"{index}.png" for index in range(40)]
    values = np.zeros((40, 3), np.float32)
    values[:, 0], values[:2, 1], values[7, 2] = 1, 1, 1
    data = PathDataset(names, values, "abc", target=MultiLabels)
    for seed in range(20):
        assert values[~hold_out_mask_by_name(data, names, 0.5, seed)].any(0).all()


def test_images_without_names_are_held_out_as_ever():
    """Bit for bit what earlier versions held out."""
    data = Arrays(np.zeros((30, 1, 1, 1), np.uint8), one_hot(np.repeat([0, 1], 15), 2), "ab")
    expected = np.zeros(30, bool)
    for number in (0, 1):
        members = np.arange(15) + 15 * number
        expected[np.random.default_rng([7, number]).permutation(members)[:3]] = True
    assert np.array_equal(hold_out_mask(data, 0.2, 7), expected)
    splits = hold_out(Splits(data), 0.2, 7)
    assert (len(splits.train), len(splits.valid), splits.held_out) == (24, 6, True)
    assert stable_names(data) is None


@pytest.mark.parametrize("csv", [False, True])
def test_the_same_wherever_the_folder_lies(tmp_path, csv, monkeypatch):
    found = []
    for place in ("here", "there/deep"):
        root = tmp_path / place / "photos"
        for name in named([12, 12]):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2)).save(root / name)
        lines = ["path,label", *(f"{name},{name[0]}" for name in named([12, 12]))]
        (root / "list.csv").write_text("\n".join(lines))
        splits = open_data(root / "list.csv" if csv else root, valid_share=0.3)
        found.append({splits.valid.location(index).removeprefix(f"{root}/") for index in range(len(splits.valid))})
        assert "about 30% of each class held out" in splits.notes[-1]
        monkeypatch.chdir(root)
        splits = open_data("list.csv" if csv else ".", valid_share=0.3)
        found.append({splits.valid.location(index) for index in range(len(splits.valid))})
    assert found == found[:1] * 4


def test_accents_are_the_same_however_they_are_composed():
    composed, apart = (stable_names(files([f"a/{name}.png"]))[0] for name in ("caf\u00e9", "cafe\u0301"))
    assert composed == apart
