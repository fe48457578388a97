"""Crops, flips and erasing of a batch equal slow loops over its images, and depend on nothing but the draws."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import tyro
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from vitreous.data.augment import Augment, Draws, augment_pixels, erase, evaluation_pixels, normalize
from vitreous.data.crops import BOX_NUMBERS, crop_boxes, training_views
from vitreous.data.transforms import ImageTransform
from vitreous.data.view import apply_views, to_pil
from vitreous.samples import Classes
from vitreous.spec import Preprocess

SIDES = st.integers(1, 13)
EVERYTHING = Augment("pad", randaugment_ops=2, erase_rate=0.5, mixup=0.8, cutmix=1.0, patch_mixup=1.0, mix_rate=0.9)


def noise(*shape):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def smooth(number, height, width):
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(6 * y / height + index) * np.cos(5 * x / width - index) for index in range(number * 3)]
    return torch.from_numpy((127 + 120 * np.stack(waves)).astype(np.uint8)).view(number, 3, height, width)


def sample(number, rows=slice(None), step=7):
    return Draws.sample(3, 1, step, number, rows)


def views_of(images, augment, size, draws):
    return training_views(augment, tuple(images.shape[-2:]), size, draws)


def cut(images, augment, size, draws):
    """Crops and flips of a batch, as a loader makes them."""
    return apply_views(images, views_of(images, augment, size, draws), [0] * images.shape[1])


def box_numbers(number):
    return sample(number).uniform("crop", BOX_NUMBERS + 1)[:, :-1]


def test_dice_do_not_know_who_asks():
    whole, part = sample(12), sample(12, slice(4, 9))
    assert len(part) == 5
    assert np.array_equal(whole.uniform("crop", 5)[4:9], part.uniform("crop", 5))
    assert np.array_equal(whole.beta("mixup", 0.3, 2)[4:9], part.beta("mixup", 0.3, 2))
    assert np.array_equal(whole.uniform("crop", 5)[6:7], part.row(2).uniform("crop", 5))


def test_dice_differ_between_purposes_steps_epochs_and_seeds():
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    throws = [Draws.sample(*key, 4).uniform(purpose, 3) for key in keys for purpose in ("crop", "mix")]
    assert len({numbers.tobytes() for numbers in throws}) == 8


def test_beta_has_its_spread():
    for alpha in (0.2, 1.0, 5.0):
        numbers = sample(4000).beta("mixup", alpha, 1)
        assert abs(numbers.mean() - 0.5) < 0.03
        assert numbers.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def naive_pad_crop(image, pad, *, down, right, flip):
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    window = padded[:, pad + down :, pad + right :][:, : image.shape[1], : image.shape[2]]
    return window[:, :, ::-1] if flip else window


@given(number=st.integers(1, 5), height=SIDES, width=SIDES, channels=st.sampled_from([1, 3]), pad=st.integers(0, 20))
def test_pad_crops_equal_a_loop(number, height, width, channels, pad):
    images, augment, draws = noise(number, channels, height, width), Augment("pad", pad=pad), sample(number)
    result = cut(images, augment, (height, width), draws)
    numbers = draws.uniform("crop", BOX_NUMBERS + 1)
    for image, row, ours in zip(images, numbers, result, strict=True):
        down, right = (int(number * (2 * pad + 1)) - pad for number in row[-3:-1])
        expected = naive_pad_crop(image.numpy(), pad, down=down, right=right, flip=row[-1] < 0.5)
        assert np.array_equal(ours.numpy(), expected)


def test_shifts_reach_everywhere():
    offsets = np.array([view.offset for view in training_views(Augment("pad", pad=4), (9, 9), (9, 9), sample(2000))])
    assert [np.unique(offsets[:, axis]).tolist() for axis in (0, 1)] == [list(range(-4, 5))] * 2


def triangle_weights(start, length, number, limit):
    """(number, limit): bilinear weights, widened where several pixels become one."""
    scale = length / number
    reach, weights = max(scale, 1.0), np.zeros((number, limit))
    for place in range(number):
        center = start + (place + 0.5) * scale
        for pixel in range(limit):
            weights[place, pixel] = max(0.0, 1 - abs(pixel + 0.5 - center) / reach)
    return weights / weights.sum(1, keepdims=True)


def naive_resized_crop(image, box, size, *, flip):
    top, left, tall, wide = box.tolist()
    down = triangle_weights(top, tall, size[0], image.shape[1])
    across = triangle_weights(left, wide, size[1], image.shape[2])
    stretched = down @ image.numpy().astype(float) @ across.T
    return stretched[:, :, ::-1] if flip else stretched


@given(number=st.integers(1, 5), source=st.tuples(SIDES, SIDES), size=st.tuples(st.integers(7, 13), st.integers(7, 13)))
def test_resized_crops_equal_a_loop(number, source, size):
    images, augment, draws = noise(number, 3, *source), Augment("resized", crop_scale=(0.1, 1.0)), sample(number)
    result = cut(images, augment, size, draws)
    assert result.dtype == torch.uint8
    numbers = draws.uniform("crop", BOX_NUMBERS + 1)
    boxes = crop_boxes(numbers[:, :-1], source, augment.crop_scale)
    for image, box, row, ours in zip(images, boxes, numbers, result, strict=True):
        expected = naive_resized_crop(image, box, size, flip=row[-1] < 0.5)
        assert np.abs(ours.numpy() - expected).max() <= 1.05  # rounded once for each axis


@given(height=st.integers(1, 60), width=st.integers(1, 60))
def test_boxes_lie_inside(height, width):
    top, left, tall, wide = crop_boxes(box_numbers(50), (height, width), (0.1, 1.0)).T
    assert min(top.min(), left.min()) >= 0
    assert min(tall.min(), wide.min()) >= 1
    assert (top + tall).max() <= height
    assert (left + wide).max() <= width


def test_boxes_are_spread_like_those_of_torchvision():
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(32, scale=(0.2, 1.0))
    drawn = [theirs.make_params([torch.empty(3, 200, 240)]) for _ in range(3000)]
    expected = np.array([[box[name] for name in ("top", "left", "height", "width")] for box in drawn])
    ours = crop_boxes(box_numbers(3000), (200, 240), (0.2, 1.0))
    for side in range(4):
        assert np.allclose(
            np.quantile(ours[:, side], [0.1, 0.5, 0.9]), np.quantile(expected[:, side], [0.1, 0.5, 0.9]), atol=8
        )


def test_the_whole_image_comes_back_unchanged():
    images = noise(4, 3, 32, 32)
    for crop in ("none", "resized"):
        augment = Augment(crop, crop_scale=(1.0, 1.0), flip_rate=0.0)
        same = [
            torch.equal(ours, theirs)
            for ours, theirs in zip(cut(images, augment, (32, 32), sample(4)), images, strict=True)
        ]
        assert all(same)


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
def test_flip_rates(crop):
    images, still = noise(40, 1, 9, 9), Augment(crop, flip_rate=0.0)
    unflipped, flipped = (cut(images, dataclasses.replace(still, flip_rate=r), (9, 9), sample(40)) for r in (0.0, 1.0))
    assert torch.equal(flipped.flip(-1), unflipped)  # a mirrored window, not a window on the mirrored image
    some = cut(images, dataclasses.replace(still, flip_rate=0.5), (9, 9), sample(40))
    share = np.mean([torch.equal(ours, theirs) for ours, theirs in zip(some, flipped, strict=True)])
    assert 0.2 < share < 0.8


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
@pytest.mark.parametrize("source", [(32, 32), (40, 40), (24, 36), (90, 60), (200, 200)])
def test_a_image_is_cut_as_in_a_batch(crop, source):
    images, augment, draws = noise(6, 3, *source), Augment(crop), sample(6)
    batch = cut(images, augment, (32, 32), draws)
    for row, image in enumerate(images):
        view = training_views(augment, source, (32, 32), draws.row(row))[0]
        alone = view.image(Image.fromarray(image.permute(1, 2, 0).numpy()), (0, 0, 0))
        assert alone.dtype == torch.uint8
        assert torch.equal(alone, batch[row])


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
def test_gray_images_and_long_ones(crop):
    alone = training_views(Augment(crop), (300, 17), (24, 40), sample(1))[0]
    assert alone.image(to_pil(noise(1, 300, 17))).shape == (1, 24, 40)
    assert cut(noise(2, 1, 300, 17), Augment(crop), (24, 40), sample(2)).shape == (2, 1, 24, 40)


def test_large_images_are_not_sampled_in_gaps():
    """Stripes one pixel wide average to gray; skipping pixels would keep some black or white."""
    stripes = (torch.arange(256) % 2 * 255).to(torch.uint8).expand(8, 1, 256, 256).contiguous()
    result = cut(stripes, Augment(crop_scale=(0.5, 1.0)), (32, 32), sample(8))
    assert (result.float() - 127.5).abs().max() < 20


@pytest.mark.parametrize("crop", ["none", "pad", "resized"])
def test_shares_of_a_batch_equal_the_whole(crop):
    """Two processes with four images each see what one with eight sees, bit for bit."""
    images, targets = noise(8, 3, 20, 20), Classes(torch.eye(8))
    augment = dataclasses.replace(EVERYTHING, crop=crop)

    def run(rows):
        draws = sample(8, rows)
        cropped = cut(images[rows], augment, (16, 16), draws)
        pixels, mixed = augment_pixels(cropped, targets.take(rows), augment, preprocess=Preprocess(), draws=draws)
        return pixels, mixed.values

    whole, halves = run(slice(0, 8)), [run(slice(0, 4)), run(slice(4, 8))]
    for index in range(2):
        assert torch.equal(whole[index], torch.cat([half[index] for half in halves]))


def test_normalizing_equals_torchvision():
    images, preprocess = noise(3, 3, 8, 8), Preprocess()
    steps = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(preprocess.mean), list(preprocess.std))]
    )
    assert torch.allclose(normalize(images, preprocess), steps(images), atol=1e-5)
    with pytest.raises(ValueError, match="1 channels, but the model takes 3"):
        normalize(noise(3, 1, 8, 8), preprocess)


def test_without_augmentation_pixels_are_only_normalized():
    images, targets = noise(3, 3, 8, 8), Classes(torch.eye(3))
    pixels, same = augment_pixels(images, targets, Augment(), preprocess=Preprocess(), draws=sample(3))
    assert torch.equal(pixels, normalize(images, Preprocess()))
    assert same is targets


@given(height=SIDES, width=SIDES, number=st.integers(1, 5))
def test_everything_at_once_keeps_its_shape(height, width, number):
    images = noise(number, 3, height, width)
    before = images.clone()
    arguments = (images, Classes(torch.eye(5)[:number]), EVERYTHING)
    pixels, targets = augment_pixels(*arguments, preprocess=Preprocess(), draws=sample(number))
    assert pixels.shape == images.shape
    assert pixels.isfinite().all()
    assert torch.allclose(targets.values.sum(1), torch.ones(number))
    assert torch.equal(images, before)


@pytest.mark.parametrize("source", [(32, 32), (64, 64), (50, 80), (80, 50)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_equals_the_transform_of_images(source, interpolation):
    preprocess = Preprocess((32, 32), crop_ratio=1.0 if source == (32, 32) else 0.9, interpolation=interpolation)
    images = smooth(2, *source)
    one_by_one = [ImageTransform(preprocess)(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in images]
    assert torch.equal(evaluation_pixels(images, preprocess), torch.stack(one_by_one))


def test_erasing():
    images = torch.ones(2000, 1, 20, 30)
    erased = erase(images.clone(), 0.25, sample(2000))[:, 0] == 0
    hit = erased.flatten(1).any(1)
    assert hit.float().mean() == pytest.approx(0.25, abs=0.04)
    area = erased[hit].float().mean((1, 2))
    assert 0.015 < area.min() < 0.03
    assert 0.3 < area.max() < 0.36
    tall, wide = erased[hit].any(2).sum(1), erased[hit].any(1).sum(1)
    assert torch.equal(tall * wide, erased[hit].sum((1, 2)))  # one box and nothing else
    ratio = tall / wide
    assert ratio.min() < 1 / 2 < 2 < ratio.max()
    assert torch.equal(erase(images, 0.0, sample(2000)), torch.ones_like(images))


def test_dice_for_another_batch():
    images, targets = noise(4, 3, 8, 8), Classes(torch.eye(4))
    with pytest.raises(ValueError, match="draws for 3 images do not fit a batch of 4"):
        augment_pixels(images, targets, Augment(), preprocess=Preprocess(), draws=sample(3))
    with pytest.raises(ValueError, match="zip"):
        cut(images, Augment(), (8, 8), sample(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "random"}, "crop must be one of none, pad, resized; got 'random'"),
        ({"pad": -1}, "pad must not be negative, got -1"),
        ({"crop_scale": (0.8, 0.2)}, "crop_scale must be two shares"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale must be two shares"),
        ({"flip_rate": 1.5}, r"flip_rate must lie in \[0, 1\], got 1.5"),
        ({"randaugment_ops": -2}, r"randaugment_ops must lie in \[0, 100\]"),
        ({"randaugment_magnitude": 31}, r"randaugment_magnitude must lie in \[0, 30\]"),
        ({"mixup": -0.1}, "mixup must lie in"),
        ({"cutmix": math.nan}, "cutmix must be a number"),
        ({"patch_mixup_size": 0}, "patch_mixup_size must be at least 1"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Augment(**options)


def test_settings_from_the_command_line(capsys):
    options = ["--crop", "pad", "--crop-scale", "0.5", "0.9", "--cutmix", "1", "--randaugment-ops", "2"]
    assert tyro.cli(Augment, args=options) == Augment("pad", crop_scale=(0.5, 0.9), cutmix=1.0, randaugment_ops=2)
    with pytest.raises(SystemExit):
        tyro.cli(Augment, args=["--help"])
    assert "probability of a horizontal flip" in " ".join(capsys.readouterr().out.replace("│", " ").split())
