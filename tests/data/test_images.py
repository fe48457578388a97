"""One image in every form that people hold: all give the same pixels, and what is ambiguous is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.image_files import BadImage
from vitreous.data.images import as_image, as_list

RGB = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
GRAY = RGB[..., 0]
CLEAR = np.dstack([RGB, GRAY])


def channels_first(pixels):
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


FORMS = {
    "array": lambda pixels: pixels,
    "array, channels first": channels_first,
    "array of float32": lambda pixels: (pixels / 255).astype(np.float32),
    "array of float16": lambda pixels: (pixels / 255).astype(np.float16),
    "tensor": lambda pixels: torch.from_numpy(channels_first(pixels)),
    "tensor, channels last": torch.from_numpy,
    "tensor of float32": lambda pixels: torch.from_numpy(channels_first(pixels)) / 255,
    "tensor with gradient": lambda pixels: (torch.from_numpy(channels_first(pixels)) / 255).requires_grad_(),
    "Pillow": Image.fromarray,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pixels", [RGB, CLEAR], ids=["rgb", "with transparency"])
def test_every_form_gives_the_pixels_of_the_file(tmp_path, form, pixels):
    Image.fromarray(pixels).save(tmp_path / "image.png")
    expected = np.asarray(as_image(tmp_path / "image.png"))
    assert expected.shape == (20, 30, 3)
    np.testing.assert_array_equal(np.asarray(as_image(FORMS[form](pixels))), expected)


@pytest.mark.parametrize(
    "gray", [GRAY, GRAY[..., None], GRAY[None], torch.from_numpy(GRAY), torch.from_numpy(GRAY)[None]]
)
def test_gray_has_one_channel_or_none(gray):
    image = as_image(gray)
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), GRAY)


def test_the_usual_order_of_axes_wins_where_both_are_possible():
    pixels = np.random.default_rng(1).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(as_image(pixels)), pixels)
    np.testing.assert_array_equal(np.asarray(as_image(torch.from_numpy(pixels))), np.moveaxis(pixels, 0, -1))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (3, "an image is a path, a Pillow image, an array .* got int"),
        (None, "got NoneType"),
        (np.zeros((8, 8, 2), np.uint8), r"1, 3 or 4 channels, got an array of uint8, \(8, 8, 2\)"),
        (torch.zeros(5, 8, 8), r"1, 3 or 4 channels, got a tensor of float32, \(5, 8, 8\)"),
        (np.zeros(8, np.uint8), r"a non-empty \(y, x\), .* got an array of uint8, \(8,\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), "pass several images as a list"),
        (np.zeros((0, 8, 3), np.uint8), "must be a non-empty"),
        (Image.new("RGB", (0, 8)), "at least one pixel"),
        (np.zeros((8, 8), np.int64), "got an array of int64, .* convert them to uint8"),
        (np.zeros((8, 8), bool), "got an array of bool"),
        (np.full((8, 8, 3), 200.0), "from 200 to 200; divide by 255, or pass uint8"),
        (torch.randn(3, 8, 8), "pass the original image, since the model's normalization is applied"),
        (np.full((8, 8, 3), np.nan), "floats must lie between 0 and 1, .* from nan to nan"),
    ],
)
def test_what_is_no_image_is_said(image, message):
    with pytest.raises(ValueError, match=message) as caught:
        as_image(image)
    assert not isinstance(caught.value, BadImage), "a mistake of the caller, which nobody should skip"


def test_a_damaged_file_is_a_bad_image(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "image.png")
    (tmp_path / "image.png").write_bytes((tmp_path / "image.png").read_bytes()[:500])
    with pytest.raises(BadImage, match=r"image.png: damaged"):
        as_image(tmp_path / "image.png")
    with Image.open(tmp_path / "image.png") as image, pytest.raises(BadImage, match="cannot be decoded"):
        as_image(image)


def test_several_images():
    assert len(as_list([RGB, GRAY])) == 2
    assert as_list((RGB,))[0] is RGB
    assert as_list(torch.zeros(4, 3, 8, 8))[3].shape == (3, 8, 8)
    assert as_list(np.zeros((4, 8, 8, 3)))[3].shape == (8, 8, 3)
    assert as_list(RGB) is None
    assert as_list("a.jpg") is None
