"""Models travel to a hub and back, with a card that lists what was measured and nothing else."""

import json
import re

import pytest
import torch

import vitreous as vt
from vitreous.cli import main
from vitreous.weights import publish


@pytest.fixture
def model():
    net = vt.create_model("vit_tiny_16", image_size=32, depth=1, dim=48, num_heads=3, num_classes=2)
    net.name_classes(("cat", "dog"))
    return net.eval()


def header_of(card):
    return json.loads(re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)[1])


@torch.no_grad()
def test_a_published_model_comes_back(hub, model):
    url = vt.push_to_hub(
        model, "me/cats", metrics={"accuracy": 0.8125}, dataset="pets", license="apache-2.0", private=True, token="hf_x"
    )
    assert url == f"{hub.url}/me/cats"
    assert hub.private == {"me/cats"}
    assert hub.tokens == {"Bearer hf_x"}
    again = vt.load("hf_hub:me/cats").eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(images), model(images))
    assert again.spec == model.spec
    assert torch.equal(vt.create_model("hf_hub:me/cats", pretrained=True).eval()(images), model(images))


def test_the_card_lists_what_was_measured(hub, model):
    vt.push_to_hub(model, "me/cats", metrics={"accuracy": 0.8125}, dataset="pets", license="apache-2.0", command="run")
    card = hub.repositories["me/cats"]["README.md"].decode()
    header = header_of(card)
    assert (header["library_name"], header["license"]) == ("vitreous", "apache-2.0")
    assert header["pipeline_tag"] == "image-classification"
    (result,) = header["model-index"][0]["results"]
    assert result["dataset"]["name"] == "pets"
    assert result["metrics"] == [{"type": "accuracy", "name": "Accuracy", "value": 0.8125}]
    assert "| Accuracy | 0.8125 |" in card
    assert "cat, dog" in card
    assert 'vt.load("hf_hub:me/cats")' in card


def test_nothing_is_claimed_that_was_not_measured(hub, model):
    vt.push_to_hub(model, "me/cats")
    card = hub.repositories["me/cats"]["README.md"].decode()
    assert not header_of(card).keys() & {"model-index", "license"}
    assert "Measured" not in card


def test_a_run_is_published_with_its_numbers(hub, model, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    vt.save(model, run / "model.safetensors")
    result = {"accuracy": 0.75, "loss": 1.0, "auroc": None, "command": "vitreous train --data pets/", "seconds": 9.0}
    (run / "result.json").write_text(json.dumps(result))
    (run / "config.json").write_text(json.dumps({"data": {"source": "/home/me/pets"}}))
    assert main(["push", str(run), "me/cats", "--license", "mit"]) == 0
    assert "hf_hub:me/cats" in capsys.readouterr().out
    card = hub.repositories["me/cats"]["README.md"].decode()
    header = header_of(card)
    assert [metric["type"] for metric in header["model-index"][0]["results"][0]["metrics"]] == ["accuracy"]
    assert header["model-index"][0]["results"][0]["dataset"]["name"] == "pets"
    assert "vitreous train --data pets/" in card
    assert "/home/me" not in card


ERRORS = {
    "no owner": ("cats", "repository must have the form user/name, got 'cats'"),
    "a path": ("a/b/c", "repository must have the form user/name"),
    "refused": ("forbidden/cats", "could not publish 'forbidden/cats' on the Hugging Face hub"),
}


@pytest.mark.parametrize(("name", "message"), ERRORS.values(), ids=ERRORS)
def test_mistakes_are_one_line(hub, model, name, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.push_to_hub(model, name)
    assert "\n" not in str(caught.value)


def test_a_repository_that_does_not_exist(hub):
    with pytest.raises(ValueError, match="could not download 'me/none' from the Hugging Face hub") as caught:
        vt.load("hf_hub:me/none")
    assert "\n" not in str(caught.value)


def test_an_unfinished_run_is_refused(hub, tmp_path):
    with pytest.raises(ValueError, match=r"not the folder of a finished run.*result\.json"):
        publish.push_run(tmp_path, "me/cats")
