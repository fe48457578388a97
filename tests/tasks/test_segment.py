"""Segmentation: loss and metrics against naive loops, merged meters, predictions as JSON and drawings."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.samples import IGNORED, Batch, Classes, Inputs, Masks
from vitreous.tasks.meter import Metric
from vitreous.tasks.predictions import Detections, Segmentation, class_color
from vitreous.tasks.segment import PixelMeter, Segment, pixel_cross_entropy

CLASSES = ("background", "disk", "star", "ring")


def example(seed=0, number=4, size=(5, 7)):
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(number, len(CLASSES), *size, generator=noise)
    masks = torch.randint(0, len(CLASSES) - 1, (number, *size), generator=noise, dtype=torch.uint8)
    masks[torch.rand(masks.shape, generator=noise) < 0.2] = IGNORED
    return logits, Batch(Inputs(torch.zeros(number, 3, *size)), Masks(masks))


def test_the_loss_equals_a_loop():
    logits, batch = example()
    total = 0.0
    for image, mask in zip(logits, batch.targets.values, strict=True):
        for y in range(5):
            for x in range(7):
                if mask[y, x] != IGNORED:
                    total -= float(image[:, y, x].log_softmax(0)[int(mask[y, x])])
    objective = Segment().start(None, "cpu")
    assert float(objective.loss({"masks": logits}, batch)["loss"]) == pytest.approx(total / (4 * 5 * 7), rel=1e-5)


def test_a_batchs_loss_is_the_mean_of_its_parts():
    logits, batch = example()
    parts = [pixel_cross_entropy(logits[i : i + 2], batch.targets.values[i : i + 2]) for i in (0, 2)]
    torch.testing.assert_close(pixel_cross_entropy(logits, batch.targets.values), sum(parts) / 2)


def naive_iou(predicted, true, index):
    known = true != IGNORED
    both = ((predicted == index) & (true == index) & known).sum()
    either = (((predicted == index) | (true == index)) & known).sum()
    return both / either if either else math.nan


def test_metrics_equal_a_naive_computation_and_merge():
    logits, batch = example(1, number=6)
    whole, first, second = PixelMeter(CLASSES), PixelMeter(CLASSES), PixelMeter(CLASSES)
    whole.add({"masks": logits}, batch, np.arange(6))
    first.add({"masks": logits[:2]}, batch.take(slice(0, 2)), np.arange(2))
    second.add({"masks": logits[2:]}, batch.take(slice(2, 6)), np.arange(2, 6))
    first.merge(pickle.loads(pickle.dumps(second)))
    predicted, true = logits.argmax(1).numpy(), batch.targets.values.numpy()
    each = [naive_iou(predicted, true, index) for index in range(len(CLASSES))]
    assert whole.result()["miou"] == pytest.approx(np.nanmean(each))
    assert whole.result()["iou/disk"] == pytest.approx(each[1])
    known = true != IGNORED
    assert whole.result()["pixel_accuracy"] == pytest.approx((predicted == true)[known].mean())
    assert len(first) == 6
    for name, value in whole.result().items():
        assert first.result()[name] == pytest.approx(value)


def test_a_metric_is_a_number_with_a_direction():
    loss = pickle.loads(pickle.dumps(Metric(0.25, "nats", higher_is_better=False)))
    assert (loss, loss.unit, loss.goodness, str(loss)) == (0.25, "nats", -0.25, "0.250")
    assert str(Metric(0.974)) == "97.4%"
    assert json.loads(json.dumps({"loss": loss})) == {"loss": 0.25}


def test_wrong_targets_and_sizes_are_errors():
    logits, batch = example()
    objective = Segment().start(None, "cpu")
    with pytest.raises(ValueError, match="segmentation needs masks, the data has one class per image"):
        objective.loss({"masks": logits}, Batch(batch.inputs, Classes(torch.zeros(4, 3))))
    with pytest.raises(ValueError, match=r"the logits have shape \(4, 4, 5, 6\).*the masks \(4, 5, 7\)"):
        objective.loss({"masks": logits[..., :6]}, batch)


def test_a_segmentation_can_be_written_and_drawn():
    mask = np.array([[0, 0, 1], [1, 2, IGNORED]], dtype=np.uint8)
    found = Segmentation(mask, CLASSES)
    told = json.loads(json.dumps(found.to_json()))
    back = np.concatenate([np.full(length, value) for value, length in told["runs"]]).reshape(told["size"])
    assert np.array_equal(back, mask)
    assert found.shares == pytest.approx({"background": 0.4, "disk": 0.4, "star": 0.2})
    image = Image.new("RGB", (3, 2), (100, 100, 100))
    drawn = np.asarray(found.draw(image, opacity=1.0))
    assert tuple(drawn[0, 0]) == (100, 100, 100), "the background stays clear"
    assert tuple(drawn[1, 1]) == class_color(2)


def test_detections_can_be_written_and_drawn():
    found = Detections(np.array([[1.0, 2.0, 5.0, 8.0]], np.float32), ("star",), (0.9,), (2,))
    assert found.to_coco(7) == [{"image_id": 7, "category_id": 2, "score": 0.9, "bbox": [1.0, 2.0, 4.0, 6.0]}]
    assert found.to_json()["objects"][0]["name"] == "star"
    assert found.draw(Image.new("RGB", (12, 12))).getpixel((1, 5)) == class_color(2)
    assert str(found) == "star 90%"
