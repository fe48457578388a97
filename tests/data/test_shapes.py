"""Shapes: pure functions of seed and index, with labels that agree with the pixels."""

import numpy as np
import pytest

import vitreous as vt
from vitreous.data.shapes import COLORS, OCCLUDER


def same(a, b):
    return np.array_equal(a.images, b.images) and np.array_equal(a.instances, b.instances)


def test_a_scene_depends_on_seed_and_index_alone():
    shapes = vt.Shapes(1000)
    many = shapes.batch(range(600))  # more than one chunk
    for index in (0, 17, 299, 599):
        assert np.array_equal(shapes[index].images[0], many.images[index])
        assert shapes[index].captions[0] == many.captions[index]
    backwards = shapes.batch([5, 3, 5])
    assert np.array_equal(backwards.images[0], many.images[5])
    assert np.array_equal(backwards.images[1], many.images[3])


def test_scenes_differ_and_seeds_differ():
    images = vt.Shapes(500).batch(range(500)).images
    assert len({image.tobytes() for image in images}) == 500
    assert not same(vt.Shapes(4, seed=0).batch(range(4)), vt.Shapes(4, seed=1).batch(range(4)))


def test_known_pixels_stay_put():
    """Results and recipes refer to these scenes: if this fails, the dataset has changed and needs a new name."""
    scenes = vt.Shapes(64).batch(range(64))
    assert scenes.captions[:2] == ["a green hourglass left of a purple star", "a cyan moon left of a green star"]
    assert int(scenes.images.astype(np.int64).sum()) == FINGERPRINT


FINGERPRINT = 59_463_934


@pytest.mark.parametrize("size", [16, 64, (48, 96), 224])
def test_any_size(size):
    scenes = vt.Shapes(8, size, split_rate=0.5, occlusion=0.3).batch(range(8))
    height, width = (size, size) if isinstance(size, int) else size
    assert scenes.images.shape == (8, 3, height, width)
    assert scenes.images.dtype == np.uint8
    assert scenes.instances.shape == (8, height, width)


def test_labels_agree_with_each_other():
    scenes = vt.Shapes(400).batch(range(400))
    assert set(scenes.count) == {1, 2, 3, 4}
    assert np.array_equal((scenes.kinds >= 0).sum(1), scenes.count)
    for index in range(400):
        kinds = set(scenes.kinds[index]) - {-1}
        assert set(np.flatnonzero(scenes.present[index])) == kinds
        assert scenes.labels[index] in kinds
    counts = np.bincount(scenes.labels, minlength=10)
    assert counts.min() > 20  # ten classes, evenly


def test_the_subject_is_the_largest():
    scenes = vt.Shapes(300).batch(range(300))
    assert (scenes.composition.radius[:, :1] > 1.5 * scenes.composition.radius[:, 1:]).all()


def test_boxes_enclose_masks_exactly():
    scenes = vt.Shapes(100).batch(range(100))
    for masks, boxes in zip(scenes.masks, scenes.boxes, strict=True):
        for mask, (y0, x0, y1, x1) in zip(masks, boxes, strict=True):
            ys, xs = np.nonzero(mask)
            expected = (ys.min(), xs.min(), ys.max() + 1, xs.max() + 1) if len(ys) else (0, 0, 0, 0)
            assert (y0, x0, y1, x1) == expected


def test_colors_agree_with_pixels():
    """Where a plain object shows, its pixels have its color."""
    scenes = vt.Shapes(200).batch(range(200))
    plain = np.argwhere((scenes.composition.texture == 0) & scenes.composition.exists)
    assert len(plain) > 50
    values = np.array(list(COLORS.values()))
    for scene, item in plain:
        pixels = scenes.images[scene][:, scenes.masks[scene, item]]
        expected = values[scenes.composition.color[scene, item]]
        assert np.abs(pixels.astype(int) - expected[:, None]).max(initial=0) <= 1


def test_nobody_is_drawn_twice_or_lost():
    """Visible pixels never exceed what was drawn; alone on the canvas, all of an object is visible."""
    crowd = vt.Shapes(200).batch(range(200))
    assert (crowd.masks.sum((2, 3)) <= crowd.drawn).all()
    alone = vt.Shapes(200, max_objects=1).batch(range(200))
    assert np.array_equal(alone.masks.sum((2, 3)), alone.drawn)
    assert (alone.visible == 1).all()


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_an_occluder_hides_the_core(share):
    scenes = vt.Shapes(100, 128, max_objects=1, occlusion=share).batch(range(100))
    free = vt.Shapes(100, 128, max_objects=1).batch(range(100))
    assert scenes.occluder.any((1, 2)).all()
    assert np.array_equal(scenes.labels, free.labels)
    hidden = free.masks[:, 0] & scenes.occluder
    assert np.array_equal(scenes.masks[:, 0] | hidden, free.masks[:, 0])
    disks = scenes.labels == vt.Shapes.classes.index("disk")
    # the occluder is a disk as well, and both have the same outline
    assert (1 - scenes.visible[disks, 0]).mean() == pytest.approx(share, abs=0.01)
    assert (scenes.instances[scenes.occluder] == OCCLUDER).all()


def test_a_subject_that_is_hidden_wholly_stays_the_subject():
    scenes = vt.Shapes(50, max_objects=1, occlusion=1.0).batch(range(50))
    assert (scenes.count == 1).all()
    assert all(scenes.captions)


def test_halves_are_one_object_far_apart():
    scenes = vt.Shapes(100, 128, max_objects=1, split_rate=1.0, split_distance=0.5).batch(range(100))
    whole = vt.Shapes(100, 128, max_objects=1).batch(range(100))
    assert (scenes.count == 1).all()
    assert scenes.split[:, 0].all()
    span = (scenes.boxes[:, 0, 2:] - scenes.boxes[:, 0, :2]).max(1)
    assert (span > (whole.boxes[:, 0, 2:] - whole.boxes[:, 0, :2]).max(1)).mean() > 0.8
    inside = (scenes.boxes[:, 0, :2] > 0).all(1) & (scenes.boxes[:, 0, 2:] < 128).all(1)
    area = scenes.drawn[inside, 0] / whole.drawn[inside, 0]
    assert area == pytest.approx(1, abs=0.1)  # nothing is lost by the cut


def test_captions_say_where():
    scenes = vt.Shapes(300).batch(range(300))
    checked = 0
    for index, caption in enumerate(scenes.captions):
        if scenes.count[index] != 2 or " two " in caption or caption.startswith("two"):
            continue
        (y0, x0), (y1, x1) = scenes.composition.center[index, :2]
        relation = next(word for word in ("left of", "right of", "above", "below") if word in caption)
        assert {"left of": x1 > x0, "right of": x1 <= x0, "above": y1 > y0, "below": y1 <= y0}[relation]
        assert vt.Shapes.classes[scenes.labels[index]] in caption.split(relation)[0]
        checked += 1
    assert checked > 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 8}, "at least 16 pixels"),
        ({"max_objects": 0}, "max_objects must lie between"),
        ({"occlusion": 2.0}, "occlusion must lie between"),
        ({"split_rate": -1.0}, "split_rate must lie between"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        vt.Shapes(**options)


@pytest.mark.parametrize("indices", [[10], [-1], []])
def test_indices_out_of_range(indices):
    with pytest.raises(IndexError, match="from 0 to 9"):
        vt.Shapes(10).batch(indices)


def test_iterating_ends():
    assert len(list(vt.Shapes(5))) == 5
    assert same(vt.Shapes(5)[-1], vt.Shapes(5)[4])
