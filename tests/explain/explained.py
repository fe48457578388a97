"""Models with named classes, and an image to explain."""

import numpy as np
from PIL import Image

from tests.family import tiny

CLASSES = ["ant", "Bee", "cat", "$x_", "<script>eel</script>", "fox", "猫"]


def named(name, **overrides):
    model = tiny(name, **overrides)
    model.name_classes(CLASSES)
    return model.eval()


def photo(folder):
    """An image of noise under a name that HTML has to escape."""
    path = folder / "a <b>.png"
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path
