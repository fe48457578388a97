"""One geometry: a view against naive loops and torchvision, on images, masks and boxes, forwards and back."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from vitreous.data.augment import Augment, Draws, evaluation_pixels
from vitreous.data.crops import training_views
from vitreous.data.view import View, apply_views, covering_view, evaluation_view, to_channels_first, to_pil
from vitreous.samples import IGNORED
from vitreous.spec import Preprocess

SIZES = st.tuples(st.integers(12, 60), st.integers(12, 60))


def noise(size, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def naive(view, mask):
    """Pixel by pixel: where the middle of each output pixel lies in the source."""
    top, left, height, width = view.box
    out = np.full(view.size, IGNORED, dtype=np.uint8)
    for y in range(view.size[0]):
        for x in range(view.size[1]):
            column = view.size[1] - 1 - x if view.flipped else x
            row, column = y - view.offset[0], column - view.offset[1]
            if 0 <= row < view.inner[0] and 0 <= column < view.inner[1]:
                source_y = int(top + (row + 0.5) * height / view.inner[0])
                source_x = int(left + (column + 0.5) * width / view.inner[1])
                out[y, x] = mask[source_y, source_x]
    return out


@pytest.mark.parametrize(
    "view",
    [
        View((20, 30), (2, 3, 10, 20), (5, 10), (5, 10)),
        View((20, 30), (2, 3, 10, 20), (5, 10), (5, 10), flipped=True),
        View((20, 30), (0, 0, 20, 30), (10, 15), (12, 12), (1, -2)),
        View((20, 30), (0, 0, 20, 30), (40, 60), (30, 30), (-5, -15), flipped=True),
    ],
)
def test_masks_equal_a_loop(view):
    mask = np.random.default_rng(1).integers(0, 9, view.source, dtype=np.uint8)
    assert np.array_equal(view.mask(torch.from_numpy(mask)).numpy(), naive(view, mask))


@pytest.mark.parametrize("source", [(32, 32), (300, 100), (100, 300), (57, 83), (224, 224), (17, 400)])
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("crop_ratio", [1.0, 0.875])
def test_evaluation_is_torchvisions_resize_and_center_crop(source, size, crop_ratio):
    image = noise(source)
    view = evaluation_view(source, Preprocess(size, crop_ratio))
    least = [int(side / crop_ratio) for side in size]
    if source[0] * least[1] > source[1] * least[0]:
        resized = [int(least[1] * source[0] / source[1]), least[1]]
    else:
        resized = [least[0], int(least[0] * source[1] / source[0])]
    mode = v2.InterpolationMode.BICUBIC
    theirs = v2.functional.center_crop(v2.functional.resize(image, resized, interpolation=mode), list(size))
    assert torch.equal(view.image(image), to_channels_first(theirs))


@settings(deadline=None, max_examples=60)
@given(SIZES, SIZES)
def test_a_letterbox_cuts_nothing_off(source, size):
    view = evaluation_view(source, Preprocess(size, fit="letterbox"))
    assert view.undo_mask(np.zeros(size, dtype=np.uint8), IGNORED).max() == 0, "every source pixel is seen"
    corners = view.boxes(torch.tensor([[0.0, 0.0, source[1], source[0]]]))[0]
    assert corners.min() >= -0.51
    assert corners[2] <= size[1] + 0.51
    assert corners[3] <= size[0] + 0.51


@settings(deadline=None, max_examples=80)
@given(
    SIZES,
    st.tuples(st.integers(8, 40), st.integers(8, 40)),
    st.integers(0, 10_000),
    st.sampled_from(["resized", "pad"]),
)
@example((12, 14), (8, 25), 0, "pad")  # 25 · (14 / 25) is more than 14 in floating point
def test_boxes_and_masks_move_with_the_image(source, size, seed, crop):
    """A bright rectangle: its mask covers it, and its box encloses the mask to within a pixel."""
    rng = np.random.default_rng(seed)
    top, left = rng.integers(0, source[0] - 6), rng.integers(0, source[1] - 6)
    bottom, right = rng.integers(top + 5, source[0] + 1), rng.integers(left + 5, source[1] + 1)
    mask = np.zeros(source, dtype=np.uint8)
    mask[top:bottom, left:right] = 1
    view = training_views(Augment(crop=crop, pad=0), source, size, Draws.sample(seed, 0, 0, 1))[0]
    seen = view.mask(torch.from_numpy(mask)).numpy() == 1
    box = view.boxes(torch.tensor([[left, top, right, bottom]], dtype=torch.float32))
    torch.testing.assert_close(
        view.undo_boxes(box)[0], torch.tensor([left, top, right, bottom]).float(), atol=1e-3, rtol=0
    )
    if seen.any():
        rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
        around = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        clipped = np.clip(box[0].numpy(), 0, [size[1], size[0], size[1], size[0]])
        scale = max(view.inner[0] / view.box[2], view.inner[1] / view.box[3])
        assert np.abs(around - clipped).max() <= 1 + scale
    bright = view.image(Image.fromarray(mask * 255).convert("RGB"))[0].numpy() > 127
    if view.inner[0] >= view.box[2] and view.inner[1] >= view.box[3]:  # enlarged: edges stay where they are
        assert (bright != seen).mean() < 0.2


def test_masks_come_back_onto_the_source():
    view = View((20, 30), (0, 0, 20, 30), (40, 60), (30, 60), (-5, 0), flipped=True)
    mask = torch.from_numpy(np.random.default_rng(2).integers(0, 5, (20, 30), dtype=np.uint8))
    back = view.undo_mask(view.mask(mask).numpy(), outside=77)
    seen = back != 77
    assert np.array_equal(back[seen], mask.numpy()[seen])
    assert seen[3:17].all()
    assert not seen[:2].any(), "what was cut off is not made up"


def test_a_batch_without_resampling_equals_its_images_one_by_one():
    images = torch.randint(0, 256, (6, 3, 16, 20), dtype=torch.uint8)
    views = training_views(Augment(crop="pad", pad=5), (16, 20), (16, 20), Draws.sample(3, 0, 0, 6))
    alone = [view.image(to_pil(image)) for image, view in zip(images, views, strict=True)]
    assert torch.equal(apply_views(images, views, (0, 0, 0)), torch.stack(alone))
    assert len({view.offset for view in views}) > 1


def test_a_border_is_reflected_or_filled():
    image = noise((8, 8))
    reflect_indices = View((8, 8), (0, 0, 8, 8), (8, 8), (8, 8), (2, 0), border="reflect").image(image)
    filled = View((8, 8), (0, 0, 8, 8), (8, 8), (8, 8), (2, 0)).image(image, (9, 8, 7))
    pixels = to_channels_first(image)
    assert torch.equal(reflect_indices[:, 0], pixels[:, 2])
    assert filled[:, 0, 0].tolist() == [9, 8, 7]
    assert torch.equal(filled[:, 2:], pixels[:, :6])


def test_an_image_of_another_size_is_refused():
    with pytest.raises(ValueError, match="expects an image of 20×30 pixels, got 30×20"):
        covering_view((20, 30), (8, 8)).image(noise((30, 20)))


def smooth(size):
    y, x = np.mgrid[: size[0], : size[1]]
    return Image.fromarray((127 + 60 * np.sin(y / 9) + 60 * np.cos(x / 7)).astype(np.uint8)).convert("RGB")


@pytest.mark.parametrize("source", [(4, 3000), (3000, 4), (1, 2500), (20, 4000), (5000, 30)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
def test_of_a_long_image_only_what_is_seen_is_resized(monkeypatch, source, interpolation):
    image, view = smooth(source), evaluation_view(source, Preprocess((32, 24), 0.875, interpolation))
    mask = torch.from_numpy(np.asarray(image)[..., 0] // 40)
    resized = []
    resize = Image.Image.resize

    def counted(self, size, *rest, **options):
        resized.append(size)
        return resize(self, size, *rest, **options)

    monkeypatch.setattr(Image.Image, "resize", counted)
    seen, classes = view.image(image), view.mask(mask)
    assert resized == [(24, 32)] * 2
    monkeypatch.setattr("vitreous.data.view.MAX_RESIZE_RATIO", 10**9)
    whole, labels = view.image(image), view.mask(mask)
    assert resized[2] == view.inner[::-1]
    away = (seen.int() - whole.int()).abs()
    assert away.float().mean() < 0.5, "rounding only"
    assert (classes == labels).float().mean() > 0.9, "where two pixels are equally near, either one may be taken"


def test_an_image_longer_than_any_resize_is_seen():
    """Its resized form would have 10^13 pixels, and its middle is beyond what 32-bit floats can count."""
    length = 30_000_001
    image = Image.new("L", (length, 1))
    image.paste(255, (length // 2, 0, length // 2 + 1, 1))
    seen = evaluation_view((1, length), Preprocess((24, 24), 1.0, "nearest")).image(image)
    assert seen.min() == 255, "one pixel fills the square"


@pytest.mark.parametrize("channels", [2, 5])
def test_images_of_other_channels_are_refused(channels):
    with pytest.raises(ValueError, match=f"1, 3 or 4 channels, these have {channels}"):
        evaluation_pixels(torch.zeros((1, channels, 9, 9), dtype=torch.uint8), Preprocess((4, 4)))
