"""timm's names mean timm's architectures."""

import pytest
import timm
import torch

import vitreous as vt
from vitreous.models import MODELS, find_config
from vitreous.models.timm_names import RULES, from_timm
from vitreous.weights import published
from vitreous.weights.published import PUBLISHED

ALIASES = {name: found for name in timm.list_models() if (found := from_timm(name)) and found[0] in MODELS}


def test_every_rule_serves_some_name():
    ours = {name for name, _ in ALIASES.values()}
    assert len(ALIASES) > 60
    for _, target in RULES:
        start = target.partition("{")[0]
        assert any(name.startswith(start) for name in ours), target


@pytest.mark.parametrize("name", [n for n in ALIASES if not any(s in n for s in ("huge", "giant", "gigantic"))])
def test_an_alias_has_as_many_parameters_as_in_timm(name):
    with torch.device("meta"):
        theirs = timm.create_model(name)
        ours = vt.create_model(name, num_classes=theirs.num_classes)
    extra = ours.config.dim if "reg4" in name else 0  # a position for the class token, as in the original
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) + extra


@pytest.mark.parametrize("row", PUBLISHED.values(), ids=PUBLISHED)
def test_published_files_are_found_under_timms_names(row):
    full = row.repo.removeprefix("timm/")
    assert published.find(full) is published.find(f"timm/{full}") is published.find(f"hf_hub:timm/{full}") is row
    config = find_config(full.split(".")[0])
    wanted = find_config(row.model).override(image_size=row.config.get("image_size", 224), num_classes=1000)
    assert config.override(image_size=wanted.image_size, num_classes=1000) == wanted


def test_the_default_weights():
    assert published.find_default("vit_base_16").num_classes == 1000
    assert published.find_default("vit_base_patch16_384").config["image_size"] == 384
    assert published.find_default("vit_base_patch16_224.orig_in21k_ft_in1k").name == "vit_base_16.orig_in21k_ft_in1k"
    with pytest.raises(ValueError, match="there are no public weights for 'dat_tiny'"):
        published.find_default("dat_tiny")
    with pytest.raises(ValueError, match=r"'vit_tiny_16\.none' is neither a weights file nor the name"):
        published.find_default("vit_tiny_16.none")


def test_pretrained_weights_are_loaded(monkeypatch, tmp_path):
    theirs = timm.create_model("deit_tiny_patch16_224").eval()
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    monkeypatch.setattr(published, "fetch", lambda row: tmp_path / "model.pth")
    ours = vt.create_model("deit_tiny_patch16_224", pretrained=True).eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)
    assert ours.spec.labels.names[0] == "tench"
    fresh = vt.create_model("deit_tiny_patch16_224.fb_in1k", pretrained=True, num_classes=3)
    assert fresh.config.num_classes == 3


def test_mistakes():
    with pytest.raises(ValueError, match=r"pretrained=True requires a model name"):
        vt.create_model(find_config("vit_tiny_16"), pretrained=True)
    with pytest.raises(ValueError, match="unknown model 'vit_medium_patch16_224'"):
        vt.create_model("vit_medium_patch16_224")
