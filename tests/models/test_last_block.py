"""The last-block shortcut: same outputs and gradients with fewer tokens, applied only where valid."""

import pytest
import torch
from torch import nn

import vitreous as vt
from tests.parity import error, fill
from vitreous.models.last_block import shorten_last_block, tokens_read
from vitreous.samples import Inputs


def tiny(**overrides):
    return fill(vt.create_model("vit_tiny_16", depth=2, image_size=64, num_classes=5, **overrides))


def shortened(model):
    shorten_last_block(model)
    return model


OPTIONS = [
    {},
    {"distilled": True},
    {"num_registers": 3, "layer_scale": 0.1},
    {"qkv_bias": False},
    {"position": "rope"},
    {"position": "relative"},
    {"pool": "mean"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_outputs_with_the_same_gradients(options):
    model, images = tiny(**options).double().eval(), torch.randn(2, 3, 64, 80).double()
    names, found = list(model.state_dict()), []
    for net in (model, shortened(model)):
        heads = net.outputs(Inputs(images))
        loss = sum(logits.square().sum() for logits in heads.values())
        found.append([loss.detach(), *heads.values(), *torch.autograd.grad(loss, list(net.parameters()))])
    for expected, ours in zip(*found, strict=True):
        assert torch.equal(ours, expected) or error(ours, expected) < 1e-12
    assert list(model.state_dict()) == names


def last_mlp_sees(model, images):
    seen = []
    hook = model.blocks[-1].mlp.register_forward_hook(lambda part, given, out: seen.append(given[0].shape[1]))
    model(images)
    hook.remove()
    return seen


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({}, 1),
        ({"distilled": True}, 2),
        ({"num_registers": 2}, 1),
        ({"pool": "mean"}, 17),
        ({"position": "rope"}, 17),
        ({"position": "relative"}, 17),
    ],
)
def test_the_last_mlp_gets_only_the_tokens_that_are_read(options, number):
    model, images = tiny(**options), torch.randn(1, 3, 64, 64)
    every = last_mlp_sees(model, images)
    assert last_mlp_sees(shortened(model), images) == [number]
    assert every[0] >= 17, "models do not do this by default"
    assert last_mlp_sees(shortened(model), images) == [number], "applying it twice has no further effect"


def test_observing_hooks_do_not_change_results():
    """Outputs and gradients stay the same, with dropout."""
    model, images = shortened(tiny(drop_rate=0.3, drop_path_rate=0.2)).train(), torch.randn(4, 3, 64, 64)

    def run():
        torch.manual_seed(7)
        logits = model(images)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    before = run()
    looked = []
    model.blocks[-1].mlp.register_forward_hook(lambda *_: looked.append(True))
    assert all(torch.equal(*pair) for pair in zip(before, run(), strict=True))
    assert looked


class Exchanged(nn.Linear):
    """A linear layer with extra computation, such as an adapter."""

    def forward(self, x):
        return super().forward(x) + 1


def exchange(model):
    last = model.blocks[-1].mixer
    wider = Exchanged(last.qkv.in_features, last.qkv.out_features)
    wider.load_state_dict(last.qkv.state_dict())
    last.qkv = wider


def wrap_mixer(model):
    mixer = model.blocks[-1].mixer
    mixer.forward = lambda *given, run=mixer.forward, **named: run(*given, **named) + 1


def wrap_block(model):
    block = model.blocks[-1]
    block.forward = lambda *given, run=block.forward, **named: run(*given, **named) + 1


@pytest.mark.parametrize("change", [exchange, wrap_mixer, wrap_block])
def test_a_modified_block_is_not_shortened(change):
    model, images = tiny(), torch.randn(2, 3, 64, 64)
    change(model)
    whole = model(images)
    assert last_mlp_sees(shortened(model), images) == [17]
    assert torch.equal(model(images), whole)


def test_other_families_are_not_changed():
    model = vt.create_model("swin_tiny", image_size=64, num_classes=5)
    assert tokens_read(model) is None
    shorten_last_block(model)
    assert not any("forward" in vars(part) for part in model.modules())
