"""The preprocessing equals torchvision's classic one, for any kind of image."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as classic

import vitreous as vt


def image(mode="RGB", size=(120, 90)):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def test_equals_the_classic_pipeline():
    expected = classic.Compose(
        [
            classic.Resize(256, interpolation=classic.InterpolationMode.BICUBIC),
            classic.CenterCrop(224),
            classic.ToTensor(),
            classic.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    assert torch.allclose(vt.transforms(vt.Preprocess())(image()), expected(image()), atol=1e-6)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "RGBA", "P", "1"])
@pytest.mark.parametrize("num_channels", [1, 3])
def test_any_mode(mode, num_channels):
    model = vt.create_model("vit_tiny_16", depth=1, image_size=(32, 48), num_channels=num_channels)
    tensor = vt.transforms(model)(image(mode))
    assert tensor.shape == (num_channels, 32, 48)
    assert model(tensor[None]).shape == (1, 1000)


@pytest.mark.parametrize("size", [(300, 100), (100, 300), (200, 200)])
@pytest.mark.parametrize("target", [(64, 128), (128, 64)])
def test_a_circle_stays_a_circle(size, target):
    y, x = np.mgrid[: size[1], : size[0]]
    circle = (np.hypot(y - size[1] / 2 + 0.5, x - size[0] / 2 + 0.5) < 20).astype(np.uint8) * 255
    tensor = vt.transforms(vt.Preprocess(image_size=target, crop_ratio=1.0))(Image.fromarray(circle))
    inside = tensor[0] > tensor[0].mean()
    height, width = inside.any(1).sum().item(), inside.any(0).sum().item()
    assert tensor.shape[1:] == target
    assert abs(height - width) <= 2


def test_training_crops_at_random():
    transform = vt.transforms(vt.Preprocess(image_size=(32, 32)), train=True)
    assert not torch.equal(transform(image()), transform(image()))


def test_channels_that_no_image_has():
    with pytest.raises(ValueError, match="the model takes 5"):
        vt.transforms(vt.Preprocess().with_channels(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_ratio": 0}, "crop_ratio must lie in"),
        ({"interpolation": "cubic"}, "interpolation must be one of"),
        ({"std": (0, 1, 1)}, "std > 0"),
        ({"mean": (0.5,)}, "one value per channel"),
        ({"image_size": -3}, "image_size must be a positive int"),
    ],
)
def test_a_preprocess_that_makes_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        vt.Preprocess(**options)
