"""Targets of every kind through dataset, loader and augmentation; what memory, files and prediction see is the same."""

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from vitreous.data.augment import Augment
from vitreous.data.base import Arrays, FileDataset
from vitreous.data.loader import EvaluationLoader, Loader
from vitreous.data.memory import decode_into_memory
from vitreous.data.scenes import TARGETS, ShapesDataset
from vitreous.data.shapes import Shapes
from vitreous.samples import IGNORED, Boxes, Classes, Masks, MultiLabels, Texts
from vitreous.spec import Preprocess

SMALL = Preprocess((24, 24))


class Scenes(FileDataset):
    """Scenes of different sizes, opened one by one, with any kind of target."""

    def __init__(self, target, number=12, *, num_views=1, chosen=None):
        self.target, self.num_views = target, num_views
        self.sets = [ShapesDataset(Shapes(4, size, seed=3), target=target) for size in ((40, 30), (30, 50), (33, 33))]
        self.classes = self.sets[0].classes
        self.chosen = np.arange(number) if chosen is None else chosen

    def __len__(self):
        return len(self.chosen)

    def place(self, index):
        return self.sets[self.chosen[index] % 3], np.array([self.chosen[index] // 3])

    def image(self, index):
        data, rows = self.place(index)
        image = Image.fromarray(data.pixels(rows)[0].transpose(1, 2, 0))
        return image if self.num_views == 1 else (image,) * self.num_views

    def targets(self, indices):
        found = [data.targets(rows) for data, rows in map(self.place, indices)]
        return self.target.cat(found)

    def subset(self, indices):
        return Scenes(self.target, num_views=self.num_views, chosen=self.chosen[indices])

    def cameras(self, index):
        return np.stack([np.eye(3, 4, dtype=np.float32)] * self.num_views) if self.num_views > 1 else None


def same(one, other):
    for name, value in vars(one).items():
        theirs = getattr(other, name)
        if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
            assert all(torch.equal(a, b) for a, b in zip(value, theirs, strict=True))
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs)
        else:
            assert value == theirs


@pytest.mark.parametrize("target", [Classes, MultiLabels, Masks, Boxes, Texts])
@pytest.mark.parametrize("source", ["arrays", "files"])
def test_a_batch_follows_from_seed_step_and_place(target, source):
    data = ShapesDataset(Shapes(12, (32, 32)), target=target) if source == "arrays" else Scenes(target)
    augment = Augment(randaugment_ops=1, erase_rate=0.2)

    def loader(rows=None):
        return Loader(data, SMALL, augment, batch_size=6, rows=rows, seed=5)

    whole, again = loader().batch(3), loader().batch(3)
    halves = [loader(rows).batch(3) for rows in (slice(0, 3), slice(3, 6))]
    assert torch.equal(whole.images, again.images)
    same(whole.targets, again.targets)
    assert torch.equal(whole.images, torch.cat([half.images for half in halves]))
    same(whole.targets, target.cat([half.targets for half in halves]))
    assert len(whole) == len(whole.targets) == len(whole.views) == 6
    same(whole.targets, target.cat([part.targets for part in whole.split(3)]))


def test_boxes_stay_inside_and_masks_keep_their_classes():
    for step in range(4):
        boxes = Loader(Scenes(Boxes), SMALL, Augment(randaugment_ops=1), batch_size=6).batch(step).targets
        boxes.check([(24, 24)] * 6, 10)
        masks = Loader(Scenes(Masks), SMALL, Augment(randaugment_ops=1), batch_size=6).batch(step).targets
        masks.check([(24, 24)] * 6, 11)


def wide_files(folder, number=6):
    """300×100 images whose color says the column."""
    for kind in ("a", "b"):
        (folder / kind).mkdir(parents=True)
        for index in range(number):
            row = np.linspace(0, 255, 300).astype(np.uint8)
            pixels = np.stack([np.tile(row, (100, 1))] * 3, axis=-1)
            pixels[..., 1] = 10 * index
            Image.fromarray(pixels).save(folder / kind / f"{index}.png")
    return folder


def test_memory_files_evaluation_and_prediction_see_the_same_pixels(tmp_path):
    data = vt.open_data(wide_files(tmp_path / "wide"), valid_share=0).train
    kept, broken = decode_into_memory(data)
    assert not broken
    augment = Augment(crop="resized", randaugment_ops=1)
    seen = []
    for step in range(10):
        files, memory = (Loader(one, SMALL, augment, batch_size=6, seed=1).batch(step) for one in (data, kept))
        assert torch.equal(files.images, memory.images)
        seen += [(view.box[1] / 300, (view.box[1] + view.box[3]) / 300) for view in files.views]
    assert min(left for left, _ in seen) < 0.05
    assert max(right for _, right in seen) > 0.95, "nearly the whole width is seen, not its middle third"
    (_, files), (_, memory) = (next(iter(EvaluationLoader(one, SMALL))) for one in (data, kept))
    assert torch.equal(files.images, memory.images)
    model = vt.create_model("vit_tiny_16", image_size=24, num_classes=2, dim=16, depth=1, num_heads=1, patch_size=8)
    predictor = vt.Predictor(model)
    predicted, _ = predictor.preprocess(data.paths[0])
    alone = EvaluationLoader(data, model.spec.preprocess)
    assert torch.equal(predicted, next(iter(alone))[1].images[0])


def test_several_views_of_a_scene_come_together():
    plain = Augment(crop="none", flip_rate=0.0)
    batch = Loader(Scenes(Classes, num_views=2), SMALL, plain, batch_size=3).batch(0)
    assert batch.images.shape == (3, 2, 3, 24, 24)
    assert batch.inputs.cameras.shape == (3, 2, 3, 4)
    (_, found), *_ = EvaluationLoader(Scenes(Classes, num_views=2), SMALL)
    view = found.views[0]
    np.testing.assert_allclose(found.inputs.cameras[0, 0].numpy(), view.matrix @ np.eye(3, 4), rtol=1e-6)
    with pytest.raises(ValueError, match="multi-view scenes cannot be augmented"):
        Loader(Scenes(Classes, num_views=2), SMALL, Augment(), batch_size=3)


def bright_squares():
    images = np.zeros((8, 3, 40, 40), dtype=np.uint8)
    masks = np.zeros((8, 40, 40), dtype=np.uint8)
    for index in range(8):
        images[index, :, 8 : 24 + index, 10:30] = 255
        masks[index, 8 : 24 + index, 10:30] = 1
    boxes = [torch.tensor([[10.0, 8.0, 30.0, 24.0 + index]]) for index in range(8)]
    return images, masks, boxes


def test_geometric_operations_move_masks_and_boxes():
    images, masks, boxes = bright_squares()
    augment = Augment(crop="none", flip_rate=0.0, randaugment_ops=1, randaugment_magnitude=9)
    own = Preprocess((40, 40), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    classes = [torch.zeros(1, dtype=torch.int64)] * 8
    moved = 0
    for step in range(6):
        by_mask = Loader(Arrays(images, Masks(torch.from_numpy(masks)), ["no", "yes"]), own, augment, batch_size=8)
        by_box = Loader(Arrays(images, Boxes(tuple(boxes), tuple(classes)), ["thing"]), own, augment, batch_size=8)
        masked, boxed = by_mask.batch(step), by_box.batch(step)
        for image, mask, box in zip(masked.images, masked.targets.values, boxed.targets.boxes, strict=True):
            bright, inside = image[0] > 0.5, mask == 1
            if not bright.any() or bright.all():  # solarized, or so dark that nothing is bright
                continue
            assert (bright & inside).sum() / (bright | inside).sum() > 0.8
            rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
            around = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]).float()
            assert (box[0] - around).abs().max() < 4
            moved += bool((mask == IGNORED).any())
    assert moved > 3, "what came in from outside is ignored"


def test_mixing_refuses_what_cannot_be_blended():
    with pytest.raises(ValueError, match="MixUp and CutMix need class targets, the data has a mask per image"):
        Loader(ShapesDataset(Shapes(12, (32, 32)), target=Masks), SMALL, Augment(cutmix=1.0), batch_size=3)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (Masks(torch.zeros(2, 9, 8, dtype=torch.uint8)), "got 9×8 pixels for an image of 8×8"),
        (
            Masks(torch.full((2, 8, 8), 3, dtype=torch.uint8)),
            "a mask holds the value 3, but there are 3 classes",
        ),
        (
            Boxes((torch.tensor([[1.0, 1.0, 9.0, 4.0]]),) * 2, (torch.zeros(1, dtype=torch.int64),) * 2),
            r"the box \[1.0, 1.0, 9.0, 4.0\] .* exceeds its image of 8×8 pixels",
        ),
        (
            Boxes((torch.tensor([[1.0, 1.0, 3.0, 4.0]]),) * 2, (torch.full((1,), 3),) * 2),
            "a box has a class outside 0 to 2",
        ),
        (Classes(torch.zeros(2, 5)), r"need targets of shape \(2, 3\), got shape \(2, 5\)"),
        (Classes(torch.zeros(3, 3)), "got 3 targets for 2 images"),
    ],
)
def test_targets_that_do_not_fit_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        Arrays(np.zeros((2, 3, 8, 8), dtype=np.uint8), targets, ["a", "b", "c"])


def test_a_source_says_what_it_cannot_give():
    with pytest.raises(ValueError, match="digits has one class per image, the task needs boxes with classes"):
        vt.open_data("digits", target=Boxes)
    assert set(TARGETS) == {Classes, MultiLabels, Masks, Boxes, Texts}
