"""What is recorded is what was computed, and recording leaves nothing behind."""

import copy
import gc
import weakref

import pytest
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.attention import Attend


def tiny(**overrides):
    return fill(vt.create_model("vit_tiny_16", **({"depth": 3, "image_size": 64} | overrides)))


@pytest.mark.parametrize("position", ["learned", "relative", "rope"])
def test_weights_times_values_is_the_fused_output(position):
    model, images = tiny(position=position), torch.randn(2, 3, 48, 80)
    plain = model(images)
    captured = {}
    for index, block in enumerate(model.blocks()):
        block.mixer.attend.register_forward_hook(
            lambda _, args, out, index=index: captured.__setitem__(index, (args[2], out))
        )
    model(images)
    with vt.record(model) as trace:
        recorded = model(images)
    assert error(recorded, plain) < 1e-5
    for index, (values, fused) in captured.items():
        attention = trace[f"blocks.{index}"]
        assert error(attention.weights @ values, fused) < 1e-5
        assert torch.allclose(attention.weights.sum(-1), torch.ones(()), atol=1e-5)
        assert (attention.query_grid, attention.key_grid, attention.num_prefix) == ((3, 5), (3, 5), 1)


def test_nothing_is_left_behind():
    model, images = tiny(), torch.randn(1, 3, 64, 64)
    before, names, modules = model(images), list(model.state_dict()), list(model.modules())
    with vt.record(model) as trace:
        assert list(model.state_dict()) == names  # a model can be saved while it is recorded
        model(images)
        weights = weakref.ref(trace["blocks.0"].weights)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert torch.equal(model(images), before)
    del trace
    gc.collect()
    assert weights() is None


def test_nothing_is_left_behind_by_a_failure():
    model = tiny()
    with pytest.raises(ValueError, match="smaller than one patch"), vt.record(model):
        model(torch.randn(1, 3, 8, 8))
    assert all(type(block.mixer.attend) is Attend for block in model.blocks())


def test_memory_is_bounded_by_choice():
    model, images = tiny(), torch.randn(2, 3, 64, 64)
    with vt.record(model, layers="blocks.1") as trace:
        model(images)
    assert list(trace) == ["blocks.1"]
    with vt.record(model, reduce="mean_heads") as trace:
        model(images)
        model(images)
    assert {a.weights.shape for a in trace.values()} == {(2, 1, 17, 17)}
    with vt.record(model, ["blocks.[02]"], reduce=lambda w: w[:, :, 0]) as trace:
        model(images)
    assert {name: tuple(a.weights.shape) for name, a in trace.items()} == dict.fromkeys(
        ["blocks.0", "blocks.2"], (2, 3, 17)
    )


def test_reducing_frees_the_full_weights():
    model = tiny()
    full = []

    def first_query(weights):
        full.append(weakref.ref(weights))
        return weights[:, :, 0]  # a view, which would keep all of the weights alive

    with vt.record(model, reduce=first_query) as trace, torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
        gc.collect()
        held = sum(attention.weights.untyped_storage().nbytes() for attention in trace.values())
    assert held == 3 * (2 * 3 * 17) * 4
    assert [weights() for weights in full] == [None] * 3


def test_a_copy_made_while_recording_is_a_plain_model():
    model = tiny()
    with vt.record(model):
        twin = copy.deepcopy(model)
    with vt.record(twin) as trace:
        twin(torch.randn(1, 3, 64, 64))
    assert len(trace) == 3


def test_half_precision_does_not_overflow():
    """Products that overflow in float16 before they are scaled; the fused kernels compute them in float32."""
    q = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)
    weights = Attend().weights(q, q)
    assert weights.isfinite().all()
    assert torch.allclose(weights, torch.full((1, 1, 2, 2), 0.5))


def test_training_mode_survives_recording():
    model = tiny(attention_drop_rate=0.5).train()
    with vt.record(model):
        model.eval()
    assert not model.layers[0].mixer.attend.training


def test_gradients_flow_while_recording():
    model = tiny()
    with vt.record(model) as trace:
        model(torch.randn(1, 3, 64, 64)).sum().backward()
    assert model.layers[0].mixer.qkv.weight.grad.abs().max() > 0
    assert not trace["blocks.0"].weights.requires_grad


BAD = [
    (lambda m: vt.record(m, layers="blocks.9"), "there is no layer 'blocks.9'; did you mean"),
    (lambda m: vt.record(m, reduce="mean_head"), "no reduction 'mean_head'; did you mean 'mean_heads'"),
    (lambda m: vt.record(torch.nn.Linear(1, 1)), "needs a Vitreous model, got Linear"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny()).__enter__()


def test_recording_inside_recording():
    model = tiny()
    with vt.record(model), pytest.raises(ValueError, match="recorded already"), vt.record(model):
        pass
    assert type(model.layers[0].mixer.attend) is Attend


def test_asking_for_what_is_not_there():
    model = tiny()
    with vt.record(model, "blocks.0") as trace:
        with pytest.raises(KeyError, match="has not run yet"):
            trace["blocks.0"]
        with pytest.raises(KeyError, match="was not recorded"):
            trace["blocks.1"]
