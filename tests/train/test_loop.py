"""The training loop, except for exact resume."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import vitreous as vt
from tests.train.runs import RECIPE, assert_same, tensors, with_training
from vitreous.runs.run import train
from vitreous.tasks.classify import ClassMeter
from vitreous.tasks.meter import Metric
from vitreous.train.loop import Diverged, Trainer
from vitreous.train.optim import SGD, AdamW
from vitreous.train.outside import checkpoint_blocks, choose_precision

LAST = "checkpoints/step-00000012.safetensors"


def plain(recipe):
    """Disable dropout and stochastic depth, so that results do not depend on how batches are split."""
    return replace(recipe, model=replace(recipe.model, drop_rate=0.0, drop_path_rate=0.0))


def test_contents_of_the_run_folder(tmp_path):
    outcome = train(RECIPE, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["train"]["batch_size"] == 16
    assert config["task"] == {"task": "classify", "smoothing": 0.1}
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["images"] == 12 * 16
    assert result["seed"] == 3
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert len(list((tmp_path / "checkpoints").glob("*.json"))) == RECIPE.train.keep
    model = vt.load(tmp_path / "model.safetensors")
    assert model.spec.labels.names == vt.Shapes.classes
    assert model.spec.task == "classify"
    assert outcome.meter.arrays()["logits"].shape == (64, 10)
    with np.load(tmp_path / "predictions.npz") as kept:
        assert np.array_equal(kept["logits"], outcome.meter.arrays()["logits"])
        assert kept["indices"].tolist() == list(range(64))


def test_the_saved_model_is_the_reported_one(tmp_path):
    outcome = train(with_training(ema=0.0, optimizer=AdamW(lr=3e-3)), tmp_path)
    scores = [
        json.loads(line)["accuracy"] for line in (tmp_path / "log.jsonl").read_text().splitlines() if '"valid"' in line
    ]
    again = vt.evaluate(tmp_path / "model.safetensors", shapes_to_validate())
    assert outcome.metrics["accuracy"] == max(scores) == pytest.approx(again.metrics["accuracy"])
    np.testing.assert_allclose(outcome.meter.arrays()["logits"], again.arrays["logits"], atol=1e-5)


def shapes_to_validate():
    from vitreous.runs.prepare import prepare_run

    return prepare_run(RECIPE).valid


def test_it_learns(tmp_path):
    recipe = plain(with_training(steps=60, optimizer=AdamW(lr=3e-3), ema=0.0))
    recipe = replace(recipe, augment=vt.Augment(crop="none", flip_rate=0.0))
    recipe = replace(recipe, data=replace(recipe.data, limit=32), task=vt.Classify())
    train(recipe, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.5 * losses[0]


def test_gradient_accumulation_equals_the_full_batch(tmp_path):
    """Uses SGD: Adam divides by gradients that are zero up to rounding, such as those of key biases."""
    for parts in (1, 2, 4):
        recipe = plain(with_training(accumulate=parts, steps=4, optimizer=SGD(lr=0.1), ema=0.0))
        train(recipe, tmp_path / str(parts))
    one, two, four = (tensors(tmp_path / str(n) / "model.safetensors") for n in (1, 2, 4))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(four[name], value, atol=2e-5, err_msg=name)


def test_micro_batches_must_divide_the_batch(tmp_path):
    recipe = with_training(batch_size=64, accumulate=16)
    with pytest.raises(ValueError, match="cannot be split into 16 equal parts"):
        train(replace(recipe, data=replace(recipe.data, limit=40)), tmp_path)


def test_with_nan_scores_the_newest_model_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(ClassMeter, "result", lambda self: {"accuracy": Metric(float("nan"))})
    train(with_training(ema=0.0), tmp_path)
    kept, last = tensors(tmp_path / "model.safetensors"), tensors(tmp_path / LAST)
    assert all(np.array_equal(value, last[f"model.{name}"]) for name, value in kept.items())


def test_non_finite_loss(tmp_path, monkeypatch):
    step = Trainer.step

    def poisoned(self, index, batch, meter):
        if index == 6:
            batch.images[0] = float("inf")
        step(self, index, batch, meter)

    monkeypatch.setattr(Trainer, "step", poisoned)
    with pytest.raises(Diverged, match=r"at step 7 the loss is nan.*last good checkpoint is step-00000004"):
        train(RECIPE, tmp_path)
    kept = tensors(tmp_path / "checkpoints/step-00000004.safetensors")
    assert all(np.isfinite(value).all() for name, value in kept.items() if name != "best")


def test_checkpointed_activations_change_nothing(tmp_path):
    """Recomputation repeats the random draws of dropout and stochastic depth."""
    train(with_training(steps=4), tmp_path / "stored")
    train(with_training(steps=4, checkpoint_activations=True), tmp_path / "again")
    name = "checkpoints/step-00000004.safetensors"
    assert_same(tensors(tmp_path / "stored" / name), tensors(tmp_path / "again" / name))


def stored_bytes(model, images):
    """Bytes that autograd stores for the backward pass, without parameters."""
    sizes = {}

    def keep(tensor):
        if not any(tensor.data_ptr() == parameter.data_ptr() for parameter in model.parameters()):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(images).sum()
    total = sum(sizes.values())
    loss.backward()
    return total


def test_stored_activations_grow_linearly_with_tokens_when_checkpointed():
    """With explicit softmax they grow quadratically; with checkpointing only the blocks' inputs are stored."""
    options = {"patch_size": 8, "dim": 32, "depth": 4, "num_heads": 4, "num_classes": 10, "position": "sincos_2d"}

    def measured(side, *, checkpointed):
        model = vt.create_model("vit_tiny_16", image_size=side, attention_drop_rate=0.1, **options).train()
        if checkpointed:
            checkpoint_blocks(model)
        return stored_bytes(model, torch.randn(1, 3, side, side))

    few, many = (measured(side, checkpointed=True) for side in (64, 256))
    assert many / few == pytest.approx(16, rel=0.1), "16 times the tokens"
    few_stored, many_stored = (measured(side, checkpointed=False) for side in (64, 256))
    assert many_stored / few_stored > 40
    assert many_stored > 50 * many


def test_freezing_all_blocks_trains_only_the_head(tmp_path):
    recipe = with_training(freeze_blocks=-1, ema=0.0, steps=3)
    start = {name: value.numpy().copy() for name, value in build(recipe).state_dict().items()}
    train(recipe, tmp_path)
    end = tensors(tmp_path / "checkpoints/step-00000003.safetensors")
    changed = {name for name, value in start.items() if not np.array_equal(value, end[f"model.{name}"])}
    assert changed == {"head.weight", "head.bias"}


def build(recipe):
    from vitreous.runs.prepare import prepare_run

    return prepare_run(recipe).model


def test_compiled_blocks_train(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(self))
    train(with_training(steps=1, compile=True), tmp_path)
    assert len(compiled) == 2, "one call per block"


def test_precision_is_chosen_safely(monkeypatch):
    from vitreous.train import outside

    assert choose_precision("auto", "cpu")[0] == "fp32"
    monkeypatch.setattr(outside, "bf16_is_safe", lambda: False)
    with pytest.raises(ValueError, match="bfloat16 matrix product crashes this CPU"):
        choose_precision("bf16", "cpu")


def test_an_unknown_device_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="'cuda:7' is not available"):
        train(with_training(device="cuda:7"), tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.1}, r"TrainConfig no longer has an option 'lr'; use optimizer=AdamW\(lr=…\)"),
        ({"optimiser": "muon"}, "no longer has an option 'optimiser'; use optimizer='muon'"),
        ({"batchsize": 8}, "TrainConfig has no option 'batchsize'; did you mean 'batch_size'?"),
        ({"epochs": 0}, "epochs must be positive, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"freeze_blocks": -2}, "freeze_blocks must be at least -1, got -2"),
        ({"ema": 1.5}, r"ema must lie in \[0, 1\], got 1.5"),
        ({"parallel": "fdsp"}, "parallel must be one of ddp, fsdp; got 'fdsp'; did you mean 'fsdp'?"),
        ({"parallel": "fsdp", "optimizer": "muon"}, "'muon' does not support parallel='fsdp'"),
        ({"batch_size": 10, "accumulate": 3}, "cannot be split into 3 equal micro-batches"),
        ({"clip": -1}, "clip must not be negative"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        vt.TrainConfig(**settings)
