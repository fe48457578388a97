"""Find image files by path, folder or glob, and decode any format to upright 8-bit RGB or grayscale."""

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

ERRNO_REASONS = {errno.ENOENT: "there is no such file", errno.EISDIR: "it is a folder, not a file"}
STRIP_PIXELS = 2**20  # pixels converted at a time, to bound the memory of wide formats


class BadImage(ValueError):
    """An image that cannot be read or decoded; ``reason`` is the cause without the file name."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


def find_images(sources: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """List the images of paths, folders (recursively, without hidden files) and glob patterns, without duplicates.

    The result includes pipes, devices and broken links, so that opening them reports the cause.

    Raises:
        ValueError: A path is empty, a pattern matches nothing, or there are no files.
    """
    found: dict[Path, None] = {}
    for source in (os.fspath(source) for source in sources):
        if not source.strip():
            raise ValueError("an image path is empty; pass files, a folder, or a pattern such as 'photos/*.jpg'")
        if os.path.isdir(source):
            found |= dict.fromkeys(sorted(map(Path, visible_files_below(source))))
        elif os.path.lexists(source) or not glob.has_magic(source):
            found[Path(source)] = None
        else:
            matches = sorted(map(Path, glob_matches(source)))
            if not matches:
                raise ValueError(
                    f"no file matches {source!r}; check the pattern, quote it in the shell, or pass the folder"
                )
            found |= dict.fromkeys(matches)
    if not found:
        raise ValueError("no images found; pass files, a folder of images, or a pattern such as 'photos/*.jpg'")
    return list(found)


def visible_files_below(folder: str) -> list[str]:
    """List everything below a folder that is neither hidden nor a folder."""
    others: list[str] = []
    return [*files_below(folder, is_not_hidden, others=others), *others]


def is_not_hidden(name: str) -> bool:
    return not name.startswith(".")


def glob_matches(pattern: str) -> Iterable[str]:
    """Expand a glob; unlike Python's, ``**`` visits each folder once and does not follow link cycles."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return [match for match in glob.glob(pattern) if os.path.isfile(match)]
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:fixed])
    if not os.path.isdir(folder):
        return []
    below = files_below(folder, is_not_hidden)
    return [file for file in below if path_matches(Path(file).parts[len(folder.parts) :], parts[fixed:])]


def path_matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path's parts match those of a glob, in which ``**`` matches any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(path_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatch(parts[0], pattern[0]) and path_matches(parts[1:], pattern[1:])


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Open the first frame of an image as upright 8-bit RGB or grayscale, with transparency composited over white.

    Raises:
        BadImage: The file cannot be read or decoded.
    """
    try:
        file = open_file(path)
    except CannotRead as error:
        raise BadImage(ERRNO_REASONS.get(error.errno or 0) or str(error.strerror)) from None
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            raise BadImage("the file is empty")
        return decode_image(file)


def decode_image(file: IO[bytes]) -> Image.Image:
    """Decode an open file as :func:`open_image` does."""
    try:
        with Image.open(file) as image:  # Pillow itself refuses images of more than 179 million pixels
            if image.format == "EPS":
                raise BadImage("PostScript files are programs and are not executed; save the image as PNG")
            image.seek(0)
            image.load()
            return standardize(image)
    except BadImage:
        raise
    except Exception as error:  # Pillow's decoders may raise any exception on damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadImage(decoding_reason(reason)) from None


def printable(path: str | os.PathLike[str]) -> str:
    r"""Convert a path to printable UTF-8; invalid bytes appear as ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def standardize(image: Image.Image) -> Image.Image:
    """Convert an image to upright 8-bit RGB or grayscale, with transparency composited over white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return from_high_bit_depth(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def from_high_bit_depth(image: Image.Image) -> Image.Image:
    """Convert a high-bit-depth image to 8-bit grayscale.

    16-bit values, also in wider pixels, are scaled from 0 … 65,535. Other types have no agreed range, so the range of
    the image is stretched.
    """
    ends = [(values.min(), values.max()) for _, values in row_strips(image)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    high = max(high, low + 1e-12)
    if image.mode.startswith("I;16") or 255 < high <= 65_535:
        low, high = 0.0, 65_535.0
    shades = np.empty((image.height, image.width), dtype=np.uint8)
    for rows, values in row_strips(image):
        shades[rows] = np.clip((values - low) / (high - low) * 255, 0, 255)
    return Image.fromarray(shades)


def row_strips(image: Image.Image) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield strips of rows as float64: a whole large image at eight bytes per pixel would not fit in memory."""
    tall = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, tall):
        rows = slice(top, min(top + tall, image.height))
        values = np.asarray(image.crop((0, rows.start, image.width, rows.stop)))
        with np.errstate(invalid="ignore"):  # damaged files may hold NaN
            numbers = values.astype(np.float64)
        yield rows, np.nan_to_num(numbers)


def decoding_reason(reason: str) -> str:
    """Rephrase an error message of Pillow's."""
    if "cannot identify image file" in reason:
        return "not an image, or damaged at its start"
    if "decompression bomb" in reason.lower() or "exceeds limit" in reason:
        return f"its header declares too many pixels ({reason})"
    return f"damaged ({reason})"
