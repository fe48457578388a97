"""Pictures from anywhere: found by path, folder or glob, and opened whatever odd format they have."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps


class BadPicture(ValueError):
    """A file that cannot be shown to a model, with the reason."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


def find_pictures(sources: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Files as given, every file below a folder (hidden ones left out), every match of a glob; sorted, none twice."""
    found: dict[Path, None] = {}
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = (item for item in sorted(path.rglob("*")) if item.is_file() and not is_hidden(item, path))
            found |= dict.fromkeys(inside)
        elif path.exists() or not glob.has_magic(str(source)):
            found[path] = None
        else:
            matches = sorted(Path(match) for match in glob.glob(str(source), recursive=True) if os.path.isfile(match))
            if not matches:
                raise ValueError(
                    f"no file matches {str(source)!r}; check the pattern, and quote it in the shell, or give the folder"
                )
            found |= dict.fromkeys(matches)
    if not found:
        raise ValueError("no pictures found: give files, a folder that holds some, or a pattern such as 'photos/*.jpg'")
    return list(found)


def is_hidden(item: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in item.relative_to(below).parts)


def open_picture(path: str | os.PathLike[str]) -> Image.Image:
    """The first frame, upright and in 8 bits: RGB or grey, transparency laid over white. Else :class:`BadPicture`."""
    path = Path(path)
    if not path.exists():
        raise BadPicture("there is no such file")
    if not path.is_file():
        raise BadPicture("it is no file")
    if path.stat().st_size == 0:
        raise BadPicture("the file is empty")
    try:
        with Image.open(path) as picture:  # Pillow itself refuses pictures of more than 179 million pixels
            picture.seek(0)
            picture.load()
            return standard(picture)
    except Exception as error:  # Pillow's decoders raise whatever comes to hand on damaged files
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadPicture(plain_reason(reason, path)) from None


def standard(picture: Image.Image) -> Image.Image:
    """Upright, in 8 bits, RGB or grey; what shines through lies over white."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith(("I", "F")):
        return from_deep_pixels(np.asarray(picture))
    if "A" in picture.getbands() or "transparency" in picture.info:
        layered = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def from_deep_pixels(pixels: np.ndarray) -> Image.Image:
    """16 bits, also in wider pixels, hold 0 … 65,535; others have no agreed range, so their own is stretched."""
    values = np.nan_to_num(pixels.astype(np.float64))
    low, high = values.min(), max(values.max(), values.min() + 1e-12)
    if pixels.dtype.itemsize == 2 or 255 < high <= 65_535:
        low, high = 0.0, 65_535.0
    return Image.fromarray(np.clip((values - low) / (high - low) * 255, 0, 255).astype(np.uint8))


def plain_reason(reason: str, path: Path) -> str:
    """Pillow's words without the path, which stands beside them anyway."""
    if "cannot identify image file" in reason:
        return "not a picture, or damaged at its start"
    if "decompression bomb" in reason.lower() or "exceeds limit" in reason:
        return f"it claims to have too many pixels ({reason})"
    return f"damaged ({reason.replace(str(path), path.name)})"
