"""Real weights give real answers."""

import pytest
import torch

import vitreous as vt
from tests.shared import DEIT_TINY, class_of, golden_images, golden_logits, need_shared, photos


@pytest.fixture(scope="module")
def deit():
    need_shared()
    model = vt.create_model("deit_tiny_16").eval()
    vt.load_weights(model, DEIT_TINY)
    return model


@torch.no_grad()
def test_logits_of_ten_images_equal_the_reference(deit):
    transform, golden = vt.transforms(deit), golden_logits()
    images = golden_images()
    assert len(images) == 10
    right = 0
    for stem, image in images:
        logits = deit(transform(image)[None])[0]
        expected = torch.from_numpy(golden[f"c{class_of(stem)}"]).flatten()
        assert (logits - expected).abs().max() < 1e-3
        right += int(logits.argmax()) == class_of(stem)
    assert right == 9  # the tabby becomes an Egyptian cat


@pytest.mark.slow
@torch.no_grad()
def test_accuracy_on_a_thousand_photos(deit):
    transform = vt.transforms(deit)
    images, labels = photos()
    top1 = 0
    for start in range(0, 1000, 50):
        batch = torch.stack([transform(image) for image in images[start : start + 50]])
        top1 += int((deit(batch).argmax(1).numpy() == labels[start : start + 50]).sum())
    assert top1 / 1000 == pytest.approx(0.842, abs=0.002)
