"""Mixing a batch equals mixing its images one by one; targets follow the pixels, unknown ones too."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.data.augment import Augment, Draws
from vitreous.data.mixing import mix as mix_batch
from vitreous.data.mixing import mixing_weights, pair_aligned_rows
from vitreous.samples import Classes, MultiLabels

SIDES = st.integers(1, 13)
KINDS = {
    "mixup": Augment(mixup=0.8),
    "cutmix": Augment(cutmix=1.0),
    "patch_mixup": Augment(patch_mixup=0.5, patch_mixup_size=3),
    "all": Augment(mixup=0.8, cutmix=1.0, patch_mixup=0.5, mix_rate=0.7),
}


def sample(number, rows=slice(None)):
    return Draws.sample(1, 2, 3, number, rows)


def mix(images, targets, augment, draws, kind=Classes):
    mixed, found = mix_batch(images, kind(targets), augment, draws)
    assert type(found) is kind
    return mixed, found.values


def flat(number, height=12, width=10):
    """Images of one value each, their position: a mixed pixel says who is in it."""
    return torch.arange(float(number))[:, None, None, None].expand(number, 2, height, width).clone()


def naive_mixup(own, other, row, draws):
    weight = float(draws.beta("mixup", 0.8, 1)[row, 0])
    return weight * own + (1 - weight) * other, weight


def naive_cutmix(own, other, row, draws):
    side = np.sqrt(1 - draws.beta("cutmix", 1.0, 1)[row, 0])
    mixed, pasted = own.clone(), 0
    _, height, width = own.shape
    reach = [int(side * height), int(side * width)]
    center = draws.uniform("cutmix box", 2)[row]
    start = [int(center[0] * height) - reach[0] // 2, int(center[1] * width) - reach[1] // 2]
    for y in range(max(start[0], 0), min(start[0] + reach[0], height)):
        for x in range(max(start[1], 0), min(start[1] + reach[1], width)):
            mixed[:, y, x] = other[:, y, x]
            pasted += 1
    return mixed, 1 - pasted / (height * width)


def naive_patch_mixup(own, other, row, draws):
    _, height, width = own.shape
    across = -(-width // 3)
    weights = draws.beta("patch mixup", 0.5, across * -(-height // 3))[row]
    mixed, total = own.clone(), 0.0
    for y in range(height):
        for x in range(width):
            weight = float(weights[y // 3 * across + x // 3])
            mixed[:, y, x] = weight * own[:, y, x] + (1 - weight) * other[:, y, x]
            total += weight
    return mixed, total / (height * width)


@pytest.mark.parametrize(
    ("kind", "naive"), [("mixup", naive_mixup), ("cutmix", naive_cutmix), ("patch_mixup", naive_patch_mixup)]
)
@pytest.mark.parametrize(("number", "size"), [(2, (8, 8)), (5, (7, 11)), (6, (3, 2)), (1, (5, 5))])
def test_equals_a_loop(kind, naive, number, size):
    images, targets, draws = torch.randn(number, 3, *size), torch.eye(6)[:number], sample(number)
    mixed, mixed_targets = mix(images, targets, KINDS[kind], draws)
    for row in range(number):
        other = row ^ 1
        if other >= number:
            assert torch.equal(mixed[row], images[row])
            continue
        expected, weight = naive(images[row], images[other], row, draws)
        assert torch.allclose(mixed[row], expected, atol=1e-5)
        assert torch.allclose(mixed_targets[row], weight * targets[row] + (1 - weight) * targets[other], atol=1e-5)


@given(number=st.integers(1, 7), height=SIDES, width=SIDES, kind=st.sampled_from(list(KINDS)))
def test_targets_weigh_what_the_pixels_weigh(number, height, width, kind):
    images, targets = flat(number, height, width), torch.eye(7)[:number]
    mixed, mixed_targets = mix(images, targets, KINDS[kind], sample(number))
    assert torch.allclose(mixed_targets.sum(1), torch.ones(number), atol=1e-6)
    assert torch.allclose(mixed_targets @ torch.arange(7.0), mixed.mean((1, 2, 3)), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_has_weights_of_its_own(kind):
    _, targets = mix(flat(40), torch.eye(40), KINDS[kind], sample(40))
    assert len(targets.diagonal().unique()) > 10


def test_an_odd_one_stays_alone_and_inputs_stay_as_they_are():
    images, targets = torch.randn(5, 3, 8, 8), torch.rand(5, 4)
    before = images.clone()
    mixed, mixed_targets = mix(images, targets, KINDS["mixup"], sample(5))
    assert torch.equal(mixed[4], images[4])
    assert torch.equal(mixed_targets[4], targets[4])
    assert not torch.equal(mixed[3], images[3])
    assert torch.equal(images, before)


def test_even_shares_equal_the_whole():
    images, targets = torch.randn(8, 3, 9, 9), torch.rand(8, 4)
    whole = mix(images, targets, KINDS["all"], sample(8))
    for rows in (slice(0, 2), slice(2, 8)):
        part = mix(images[rows], targets[rows], KINDS["all"], sample(8, rows))
        assert all(torch.equal(all_of_it[rows], some) for all_of_it, some in zip(whole, part, strict=True))


def test_mix_rate_and_turns():
    weights = mixing_weights(Augment(mixup=1.0, cutmix=1.0, patch_mixup=1.0, mix_rate=0.6), (8, 8), sample(3000))
    untouched = (weights == 1).all((1, 2))
    constant = (weights == weights[:, :1, :1]).all((1, 2)) & ~untouched
    binary = ((weights == 0) | (weights == 1)).all((1, 2)) & ~constant & ~untouched
    patches = ~untouched & ~constant & ~binary
    assert abs(untouched.mean() - 0.4) < 0.06  # and a few boxes smaller than a pixel
    for kind in (constant, binary, patches):
        assert abs(kind.mean() - 0.2) < 0.04


def test_nothing_to_mix():
    images, targets = torch.randn(4, 3, 8, 8), torch.rand(4, 4)
    for augment in (Augment(), Augment(mixup=1.0, cutmix=1.0, mix_rate=0.0)):
        mixed, same = mix(images, targets, augment, sample(4))
        assert torch.equal(mixed, images)
        assert torch.equal(same, targets)


def test_several_labels():
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    images, draws = flat(2), sample(2)
    _, mixed = mix(images, targets, KINDS["mixup"], draws, MultiLabels)
    own = torch.from_numpy(draws.beta("mixup", 0.8, 1)[:, 0])
    assert torch.allclose(mixed[:, 0], torch.stack([own[0], 1 - own[1]]), atol=1e-6)
    assert torch.allclose(mixed[:, 1:], torch.tensor([1.0, 0.0]).expand(2, 2), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_labels(kind):
    """What nobody knows of one is unknown of the mixture, unless that one has no part in it."""
    number = 400
    targets = torch.zeros(number, 2)
    targets[1::2, 1] = torch.nan
    mixed, mixed_targets = mix(flat(number), targets, KINDS[kind], sample(number), MultiLabels)
    contains_odd = torch.stack([(image % 2 != 0).any() for image in mixed])
    assert torch.equal(mixed_targets[:, 1].isnan(), contains_odd)
    assert not mixed_targets[:, 0].isnan().any()
    if kind == "all":
        assert not contains_odd.all()


@pytest.mark.parametrize(
    ("rows", "number", "whole"),
    [((0, 4), 8, (0, 4)), ((0, 3), 6, (0, 4)), ((3, 6), 6, (2, 6)), ((1, 2), 3, (0, 2)), ((2, 3), 3, (2, 3))],
)
def test_whole_pairs(rows, number, whole):
    assert pair_aligned_rows(slice(*rows), number) == slice(*whole)
