"""Images of every odd kind open upright in 8 bits; what cannot be opened says why."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vitreous.data.image_files import BadImage, find_images, open_image

GRADIENT = np.linspace(0, 255, 40 * 30).reshape(30, 40)


def rgb():
    return Image.fromarray(np.stack([GRADIENT, GRADIENT, GRADIENT // 2], -1).astype(np.uint8))


KINDS = {
    "rgb.png": lambda: rgb(),
    "gray.png": lambda: rgb().convert("L"),
    "black-and-white.png": lambda: rgb().convert("1"),
    "palette.png": lambda: rgb().convert("P"),
    "alpha.png": lambda: rgb().convert("RGBA"),
    "gray-alpha.png": lambda: rgb().convert("LA"),
    "cmyk.jpg": lambda: rgb().convert("CMYK"),
    "photo.jpeg": lambda: rgb(),
    "image.webp": lambda: rgb(),
    "image.bmp": lambda: rgb(),
    "sixteen.png": lambda: Image.fromarray((GRADIENT * 257).astype(np.uint16)),
    "sixteen.tiff": lambda: Image.fromarray((GRADIENT * 257).astype(np.uint16)),
    "float.tiff": lambda: Image.fromarray(GRADIENT.astype(np.float32)),
    "thirty-two.tiff": lambda: Image.fromarray((GRADIENT * 1e6).astype(np.int32)),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_opens(tmp_path, name):
    KINDS[name]().save(tmp_path / name)
    image = open_image(tmp_path / name)
    assert image.mode in ("RGB", "L")
    assert image.size == (40, 30)
    pixels = np.asarray(image)
    assert pixels.max() - pixels.min() > 200  # nothing was clipped to one end


@pytest.mark.parametrize("name", ["sixteen.png", "sixteen.tiff", "float.tiff"])
def test_deep_pixels_keep_their_shades(tmp_path, name):
    KINDS[name]().save(tmp_path / name)
    assert np.abs(np.asarray(open_image(tmp_path / name)).astype(float) - GRADIENT).max() <= 1.5


def test_transparency_lies_over_white(tmp_path):
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.save(tmp_path / "clear.png")
    assert open_image(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_cameras_that_lie_on_their_side(tmp_path, orientation):
    """EXIF says how the camera was held; 6 means: turn by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    rgb().save(tmp_path / "photo.jpg", exif=exif)
    assert open_image(tmp_path / "photo.jpg").size == ((30, 40) if orientation >= 5 else (40, 30))


def test_animations_show_their_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    red, _, blue = open_image(tmp_path / "moving.gif").getpixel((0, 0))
    assert red > 200
    assert blue < 50


def spoil(tmp_path, kind):
    path = tmp_path / "bad.jpg"
    rgb().save(path)
    content = path.read_bytes()
    contents = {
        "text": b"this is no image at all",
        "empty": b"",
        "truncated": content[: len(content) // 2],
        "start flipped": bytes([content[0] ^ 255]) + content[1:],
    }
    path.write_bytes(contents[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text", "not an image"),
        ("empty", "the file is empty"),
        ("truncated", "damaged"),
        ("start flipped", "not an image"),
    ],
)
def test_bad_files_say_why(tmp_path, kind, message):
    with pytest.raises(BadImage, match=message) as caught:
        open_image(spoil(tmp_path, kind))
    assert str(tmp_path) not in str(caught.value)


def test_a_bomb_is_not_decoded(tmp_path):
    """A small file that claims 60,000 × 60,000 pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(bytes(1000)), b"IEND"]
    content = b"".join(struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with pytest.raises(BadImage, match=r"too many pixels|more than"):
        open_image(tmp_path / "bomb.png")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(BadImage, match="no such file"):
        open_image(tmp_path / "nowhere.jpg")
    with pytest.raises(BadImage, match="it is a folder, not a file"):
        open_image(tmp_path)


def test_finding(tmp_path):
    for name in ("b.jpg", "a.jpg", "deep/c.png", ".hidden.jpg", ".git/d.jpg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [str(path.relative_to(tmp_path)) for path in find_images([tmp_path])]
    assert names == ["a.jpg", "b.jpg", "deep/c.png", "notes.txt"]
    assert [path.name for path in find_images([f"{tmp_path}/*.jpg", tmp_path / "a.jpg"])] == ["a.jpg", "b.jpg"]
    assert [path.name for path in find_images([tmp_path / "missing.jpg"])] == ["missing.jpg"]
    (tmp_path / "odd[1].jpg").touch()
    assert [path.name for path in find_images([tmp_path / "odd[1].jpg"])] == ["odd[1].jpg"]
    with pytest.raises(ValueError, match="no file matches"):
        find_images([f"{tmp_path}/*.gif"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images found"):
        find_images([tmp_path / "empty"])
