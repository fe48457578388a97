"""Where weights come from decides what they mean: timm's PoolFormer, and windows cut to the map."""

import pytest
import safetensors.torch
import timm
import torch

import vitreous as vt
from tests.models.test_metaformer import as_poolformer, ours_tiny, timm_tiny
from tests.models.test_swin import DIM, ours_small, timm_small
from tests.parity import TOLERANCE, assert_every_block_matters, error, fill
from vitreous.layers.position import resample
from vitreous.layers.window import Window


@torch.no_grad()
def test_poolformer_under_timms_names_gives_timms_numbers(tmp_path):
    ours, theirs, images = ours_tiny("poolformer_s12"), timm_tiny("poolformer_s12"), torch.randn(2, 3, 64, 96)
    report = vt.load_weights(ours, theirs.state_dict())
    assert report.notes == ["set final_norm='pooled' as in timm"]
    assert error(ours(images), theirs(images)) < TOLERANCE
    assert_every_block_matters(ours, lambda: ours(images))
    vt.save(ours, tmp_path / "model.safetensors")
    again = vt.load(tmp_path / "model.safetensors").eval()
    assert again.config.final_norm == "pooled"
    assert torch.equal(again(images), ours(images))


@torch.no_grad()
def test_poolformer_from_a_file_and_by_name(tmp_path):
    theirs, images = fill(timm.create_model("poolformer_s12", num_classes=3)), torch.randn(1, 3, 64, 64)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = vt.load(tmp_path / "model.safetensors", model="poolformer_s12").eval()
    assert error(ours(images), theirs(images)) < TOLERANCE


@torch.no_grad()
def test_poolformer_under_its_authors_names_stays_as_in_the_paper():
    ours, other = ours_tiny("poolformer_s12"), ours_tiny("poolformer_s12")
    state = timm_tiny("poolformer_s12").state_dict()
    report = vt.load_weights(ours, {as_poolformer(key): tensor for key, tensor in state.items()})
    assert (report.source, report.notes, ours.config.final_norm) == ("PoolFormer", [], "tokens")
    vt.load_weights(other, state)
    images = torch.randn(1, 3, 64, 64)
    assert error(ours(images), other(images)) > 1e-3


def test_what_does_not_fit_leaves_the_model_as_it_was():
    ours, state = ours_tiny("poolformer_s12"), timm_tiny("poolformer_s12").state_dict()
    with pytest.raises(ValueError, match="1 unknown"):
        vt.load_weights(ours, state | {"extra": torch.zeros(1)})
    assert ours.config.final_norm == "tokens"
    assert "norm.weight" in ours.state_dict()


@pytest.mark.parametrize("size", [(64, 64), (64, 128), (128, 256)])
@torch.no_grad()
def test_tables_of_a_map_smaller_than_a_window(size):
    """timm's table is then as large as the map; ours holds it in the middle, where a map of that size finds it."""
    ours, theirs, images = ours_small(4, size), timm_small(4, size), torch.randn(2, 3, *size)
    report = vt.load_weights(ours, theirs.state_dict())
    last = min(4, size[0] // 32), min(4, size[1] // 32)
    said = f"stages.3.blocks.0.mixer.relative.table: made for a grid of {last[0]}×{last[1]}, padded to 4×4"
    assert (said in report.adapted) == (last != (4, 4))
    assert error(ours(images), theirs(images)) < TOLERANCE


@torch.no_grad()
def test_tables_of_a_smaller_map_at_a_larger_size_are_resampled():
    """Into windows of 4×4, which the map of 4×4 fills."""
    theirs, ours = timm_small(4, (64, 64)), ours_small(4, (128, 128))
    report = vt.load_weights(ours, theirs.state_dict())
    assert "stages.3.blocks.1.mixer.relative.table: made for a grid of 2×2, resampled to 4×4" in report.adapted
    given = theirs.layers[3].blocks[1].attn.relative_position_bias_table[None]
    assert torch.equal(ours.stages[3].blocks[1].mixer.relative.table, resample(given, (3, 3), (7, 7)))
    assert torch.equal(
        ours.stages[0].blocks[1].mixer.relative.table[0], theirs.layers[0].blocks[1].attn.relative_position_bias_table
    )


@torch.no_grad()
def test_windows_of_another_size_and_a_map_smaller_than_those():
    """Tables of 2×2 cells to a map of 3×5 in windows of 7: resampled, then put into the middle."""
    theirs, size = timm_small(2, (64, 64)), (96, 160)
    ours = ours_small(7, size)
    report = vt.load_weights(ours, theirs.state_dict())
    said = "stages.3.blocks.0.mixer.relative.table: made for a grid of 2×2, resampled to 3×5, padded to 7×7"
    assert said in report.adapted
    given = theirs.layers[3].blocks[0].attn.relative_position_bias_table[None]
    table = ours.stages[3].blocks[0].mixer.relative.table.unflatten(1, (13, 13))
    assert torch.equal(table[:, 4:-4, 2:-2], resample(given, (3, 3), (5, 9)).unflatten(1, (5, 9)))
    assert torch.equal(table[:, 0, 0], table[:, 4, 2])  # the edge, repeated


@torch.no_grad()
def test_a_table_that_is_no_square_and_not_the_maps_is_refused():
    theirs, ours = timm_small(4, (64, 128)), ours_small(4, (128, 128))
    with pytest.raises(ValueError, match="2 with a different shape"):
        vt.load_weights(ours, theirs.state_dict())


@torch.no_grad()
def test_a_vit_with_windows(tmp_path):
    """Our own files say their windows: a table is resampled from one size of window to the other."""
    options = {"dim": DIM, "num_heads": 2, "depth": 2, "image_size": 64, "num_classes": 3}
    source = fill(vt.create_model("vit_tiny_16", mixer=Window(size=2), **options))
    vt.save(source, tmp_path / "model.safetensors")
    model = vt.load(tmp_path / "model.safetensors", mixer=Window(size=4))
    expected = resample(source.blocks[0].mixer.relative.table, (3, 3), (7, 7))
    assert torch.equal(model.blocks[0].mixer.relative.table, expected)
