"""Inference simplifications: same outputs, original model unchanged, weights shared."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import vitreous as vt
from tests.parity import TOLERANCE, assert_every_block_matters, error, fill
from vitreous.deploy.shortcuts import LastBlock, optimize_for_inference
from vitreous.layers.reparam import Foldable

ONE, TWO = "the last block computes only one token", "the last block computes only 2 tokens"
SIMPLIFIED = [
    ("vit_tiny_16", {}, ONE),
    ("deit_tiny_distilled_16", {}, TWO),
    ("vit_tiny_16", {"num_registers": 3, "layer_scale": 0.5}, ONE),
    ("vit_tiny_16", {"qkv_bias": False, "mlp": "swiglu", "num_classes": 0}, ONE),
    ("vit_tiny_16", {"final_norm": "pooled"}, ONE),
]
UNCHANGED = [
    ("vit_tiny_16", {"pool": "mean"}),
    ("vit_tiny_16", {"position": "rope"}),
    ("vit_tiny_16", {"position": "relative"}),
    ("vit_tiny_16", {"mixer": "performer"}),
    ("vit_tiny_16", {"mixer": "window"}),
]


def build(name="vit_tiny_16", **options):
    return fill(vt.create_model(name, image_size=64, depth=3, **{"num_classes": 7} | options))


@torch.no_grad()
@pytest.mark.parametrize(("name", "options", "summary"), SIMPLIFIED)
def test_outputs_are_the_same_for_less_work(name, options, summary):
    model = build(name, **options)
    fast = optimize_for_inference(model)
    images = torch.randn(2, 3, 64, 80)
    assert error(fast(images), model(images)) < TOLERANCE
    assert_every_block_matters(fast, lambda: fast(images))
    assert fast.summary == summary
    assert [type(block) is LastBlock for block in fast.blocks] == [False, False, True]


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), UNCHANGED)
def test_other_models_stay_as_they_are(name, options):
    model = build(name, **options)
    fast = optimize_for_inference(model)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(fast(images), model(images))
    assert fast.summary == ""


@torch.no_grad()
def test_branches_are_folded():
    """In float64: in float32 either way is off by up to 2e-5, depending on the images and the CPU."""
    model = fill(vt.create_model("fastvit_t8", image_size=64, num_classes=7)).double()
    fast = optimize_for_inference(model)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert error(fast(images), model(images)) < 1e-12
    assert "multi-branch convolutions are folded" in fast.summary
    assert any(isinstance(part, Foldable) for part in model.modules())
    assert not any(isinstance(part, Foldable) for part in fast.modules())


def test_it_saves_most_of_a_block():
    """Of a block's 12 d² products per token keys and values take 2 d²; attention has one query instead of 197."""
    with torch.device("meta"):
        model = vt.create_model("vit_base_16").eval()
        images = torch.empty(1, 3, 224, 224)
        counts = []
        for module in (model, optimize_for_inference(model)):
            with FlopCounterMode(display=False) as counter:
                module(images)
            counts.append(counter.get_total_flops() // 2)
    assert counts[0] - counts[1] == 196 * (10 * 768**2 + 2 * 197 * 768)
    assert 1 - counts[1] / counts[0] == pytest.approx(0.069, abs=5e-4)


def test_the_model_is_left_alone_and_its_weights_are_shared():
    model = build(drop_rate=0.1, drop_path_rate=0.1).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parts = [type(part) for part in model.modules()]
    fast = optimize_for_inference(model)
    assert [type(part) for part in model.modules()] == parts
    assert all(part.training for part in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(part.training or isinstance(part, nn.Dropout) for part in fast.modules())
    memory = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    assert {tensor.untyped_storage().data_ptr() for tensor in fast.state_dict().values()} <= memory

    images = torch.randn(2, 3, 64, 64)
    model(images).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.01 * parameter.grad)
        assert any(not torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert error(fast(images), model.eval()(images)) < TOLERANCE


@torch.no_grad()
def test_the_original_is_still_recorded_whole():
    model = build()
    optimize_for_inference(model)
    with vt.record(model) as trace:
        model(torch.randn(1, 3, 64, 64))
    assert trace["blocks.2"].weights.shape == (1, 3, 17, 17)


@torch.no_grad()
def test_it_exports_with_a_dynamic_batch():
    fast = optimize_for_inference(build())
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(fast, (torch.randn(2, 3, 64, 64),), dynamic_shapes={"images": {0: batch}})
    images = torch.randn(5, 3, 64, 64)
    assert error(exported.module()(images), fast(images)) < TOLERANCE
