"""Images from anywhere: found by path, folder or glob, and opened whatever odd format they have."""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitreous.files import CannotRead, files_below, open_file

PLAIN = {errno.ENOENT: "there is no such file", errno.EISDIR: "it is no file"}
STRIP = 2**20  # pixels that are worked on at once where each takes many bytes


class BadImage(ValueError):
    """A file that cannot be shown to a model, with the reason."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


def find_images(sources: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Files as given, every file below a folder (hidden ones left out), every match of a glob; sorted, none twice.

    Pipes, devices and links that lead nowhere are among them, so that whoever opens them says why it cannot.
    """
    found: dict[Path, None] = {}
    for source in (os.fspath(source) for source in sources):
        if not source.strip():
            raise ValueError("an image's path is empty; give files, a folder, or a pattern such as 'photos/*.jpg'")
        if os.path.isdir(source):
            found |= dict.fromkeys(sorted(map(Path, everything_below(source))))
        elif os.path.lexists(source) or not glob.has_magic(source):
            found[Path(source)] = None
        else:
            matches = sorted(map(Path, matching(source)))
            if not matches:
                raise ValueError(
                    f"no file matches {source!r}; check the pattern, and quote it in the shell, or give the folder"
                )
            found |= dict.fromkeys(matches)
    if not found:
        raise ValueError("no images found: give files, a folder that holds some, or a pattern such as 'photos/*.jpg'")
    return list(found)


def everything_below(folder: str) -> list[str]:
    """All that is not hidden and no folder."""
    others: list[str] = []
    return [*files_below(folder, is_not_hidden, others=others), *others]


def is_not_hidden(name: str) -> bool:
    return not name.startswith(".")


def matching(pattern: str) -> Iterable[str]:
    """Files that match a glob; ``**`` walks each folder once, where Python's follows links in circles."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return [match for match in glob.glob(pattern) if os.path.isfile(match)]
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:fixed])
    if not os.path.isdir(folder):
        return []
    below = files_below(folder, is_not_hidden)
    return [file for file in below if fits(Path(file).parts[len(folder.parts) :], parts[fixed:])]


def fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path's parts match those of a glob, in which ``**`` is any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(fits(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatch(parts[0], pattern[0]) and fits(parts[1:], pattern[1:])


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """The first frame, upright and in 8 bits: RGB or gray, transparency laid over white. Else :class:`BadImage`."""
    try:
        file = open_file(path)
    except CannotRead as error:
        raise BadImage(PLAIN.get(error.errno or 0) or str(error.strerror)) from None
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            raise BadImage("the file is empty")
        return decoded(file)


def decoded(file: IO[bytes]) -> Image.Image:
    """The image of an open file, as :func:`open_image` gives it."""
    try:
        with Image.open(file) as image:  # Pillow itself refuses images of more than 179 million pixels
            if image.format == "EPS":
                raise BadImage("PostScript is a program, which is not run; save it as PNG")
            image.seek(0)
            image.load()
            return standard(image)
    except BadImage:
        raise
    except Exception as error:  # Pillow's decoders raise whatever comes to hand on damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadImage(plain_reason(reason)) from None


def printable(path: str | os.PathLike[str]) -> str:
    r"""A path as text that can be printed and written as UTF-8: bytes that are none appear as ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def standard(image: Image.Image) -> Image.Image:
    """Upright, in 8 bits, RGB or gray; what shines through lies over white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return from_deep_pixels(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def from_deep_pixels(image: Image.Image) -> Image.Image:
    """16 bits, also in wider pixels, hold 0 … 65,535; others have no agreed range, so their own is stretched."""
    ends = [(values.min(), values.max()) for _, values in strips(image)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    high = max(high, low + 1e-12)
    if image.mode.startswith("I;16") or 255 < high <= 65_535:
        low, high = 0.0, 65_535.0
    shades = np.empty((image.height, image.width), dtype=np.uint8)
    for rows, values in strips(image):
        shades[rows] = np.clip((values - low) / (high - low) * 255, 0, 255)
    return Image.fromarray(shades)


def strips(image: Image.Image) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Some rows at a time, as numbers: eight bytes for every pixel of a large image would not fit into memory."""
    tall = max(1, STRIP // image.width)
    for top in range(0, image.height, tall):
        rows = slice(top, min(top + tall, image.height))
        values = np.asarray(image.crop((0, rows.start, image.width, rows.stop)))
        with np.errstate(invalid="ignore"):  # of a damaged file's numbers that are none
            numbers = values.astype(np.float64)
        yield rows, np.nan_to_num(numbers)


def plain_reason(reason: str) -> str:
    """Pillow's words, made plain."""
    if "cannot identify image file" in reason:
        return "not an image, or damaged at its start"
    if "decompression bomb" in reason.lower() or "exceeds limit" in reason:
        return f"it claims to have too many pixels ({reason})"
    return f"damaged ({reason})"
