"""Public weights by name: the table agrees with timm's own records, and fetching works or says why not."""

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from timm.models import get_pretrained_cfg

import vitreous as vt
from tests.family import others_slowly
from tests.parity import error, fill
from vitreous.weights.published import PUBLISHED


@pytest.mark.parametrize("name", vt.list_weights())
def test_the_table_agrees_with_timm(name):
    row = PUBLISHED[name]
    record = get_pretrained_cfg(row.repo.removeprefix("timm/"))
    assert record.hf_hub_id == row.repo
    assert row.num_classes == record.num_classes == row.config["num_classes"]
    assert row.preprocess.image_size == record.input_size[1:] == (row.config["image_size"],) * 2
    assert row.preprocess.crop_ratio == record.crop_pct
    assert row.preprocess.interpolation == record.interpolation
    assert row.preprocess.mean == record.mean
    assert row.preprocess.std == record.std
    assert row.license == record.license


def architecture(row):
    return row.repo.removeprefix("timm/").split(".")[0]


ONE_OF_EACH = {(architecture(row), row.num_classes): name for name, row in PUBLISHED.items()}.values()


@pytest.mark.parametrize("name", others_slowly(ONE_OF_EACH))
def test_every_public_weight_fits_its_model(name):
    """By names and shapes on the meta device, with timm's model standing in for the file."""
    row = PUBLISHED[name]
    with torch.device("meta"):
        theirs = timm.create_model(architecture(row), num_classes=row.num_classes)
        ours = vt.create_model(row.model, **row.config)
        report = vt.load_weights(ours, theirs.state_dict())
    assert report.num_loaded == len(ours.state_dict())


def test_a_name_is_fetched_and_whole(tmp_path, monkeypatch):
    theirs = fill(timm.create_model("deit_tiny_patch16_224"))
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    asked = []

    def download(repo, filename):
        asked.append((repo, filename))
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    model = vt.load("deit_tiny_16.in1k").eval()
    assert asked == [("timm/deit_tiny_patch16_224.fb_in1k", "model.safetensors")]
    assert model.spec.preprocess.crop_ratio == 0.9
    assert model.spec.labels[285] == "Egyptian cat"
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert error(model(images), theirs(images)) < 1e-5
    smaller = vt.load("deit_tiny_16.in1k", num_classes=10, image_size=128)
    assert smaller.spec.preprocess.image_size == (128, 128)
    assert not smaller.spec.labels.names


def test_without_a_network_it_says_so():
    with pytest.raises(
        ValueError, match=r"could not download deit_tiny_16.in1k .*connect to a network, or download"
    ) as caught:
        vt.load("deit_tiny_16.in1k")
    assert "\n" not in str(caught.value)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"'deit_tiny_16.in1' is neither .* public weights; did you mean 'deit_tiny_16.in1k'",
    ):
        vt.load("deit_tiny_16.in1")
