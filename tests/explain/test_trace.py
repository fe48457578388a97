"""Recorded tensors equal those of the fused path, and recording leaves the model unchanged."""

import copy
import gc
import weakref
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import vitreous as vt
from tests.family import SMALLEST
from tests.family import tiny as family_member
from tests.parity import error, fill
from vitreous.layers.attention import Attend, AttentionOp
from vitreous.layers.layout import CellGroups, Grouped


def tiny(**overrides):
    return fill(vt.create_model("vit_tiny_16", **({"depth": 3, "image_size": 64} | overrides)))


@pytest.mark.parametrize("position", ["learned", "relative", "rope"])
def test_weights_times_values_is_the_fused_output(position):
    model, images = tiny(position=position), torch.randn(2, 3, 48, 80)
    plain = model(images)
    captured = {}
    for index, block in enumerate(model.blocks):
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
    assert all(type(block.mixer.attend) is Attend for block in model.blocks)


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
    assert not model.blocks[0].mixer.attend.training


def test_gradients_flow_while_recording():
    model = tiny()
    with vt.record(model) as trace:
        model(torch.randn(1, 3, 64, 64)).sum().backward()
    assert model.blocks[0].mixer.qkv.weight.grad.abs().max() > 0
    assert not trace["blocks.0"].weights.requires_grad


BAD = [
    (lambda m: vt.record(m, layers="blocks.9"), "there is no layer 'blocks.9'; did you mean"),
    (lambda m: vt.record(m, reduce="mean_head"), "no reduction 'mean_head'; did you mean 'mean_heads'"),
    (lambda m: vt.record(torch.nn.Linear(1, 1)), "needs a Vitreous model, got Linear"),
    (lambda m: vt.record(m, what="weigths"), "what must be among weights, .*got 'weigths'; did you mean 'weights'"),
    (lambda m: vt.record(m, what="q", gradients=True), "gradients are those of the weights"),
    (lambda m: vt.record(m, layers=[]), "layers is empty"),
    (lambda m: vt.record(m, gradients=True, reduce="mean_heads"), "gradients need the weights of every head"),
    (lambda m: vt.record(vt.create_model("convnext_atto")), "ConvNeXt has no attention to record; what='stream'"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny()).__enter__()


def test_recording_inside_recording():
    model = tiny()
    with vt.record(model), pytest.raises(ValueError, match="already being recorded"), vt.record(model):
        pass
    assert type(model.blocks[0].mixer.attend) is Attend


def test_reading_what_was_not_recorded():
    model = tiny()
    with vt.record(model, "blocks.0") as trace:
        with pytest.raises(KeyError, match="has not run yet"):
            trace["blocks.0"]
        with pytest.raises(KeyError, match="was not recorded"):
            trace["blocks.1"]


ATTENTIVE = [name for name in SMALLEST if name not in ("resnet18", "convnext_atto", "poolformer_s12")]


@pytest.mark.parametrize("name", ATTENTIVE)
def test_the_attention_of_every_family(name):
    model, images = family_member(name).double(), torch.randn(2, 3, 64, 80).double()
    plain, modules = model(images), list(model.modules())
    fused = {}
    for path, part in model.named_modules():
        if isinstance(part, AttentionOp):
            part.register_forward_hook(lambda _, given, out, path=path: fused.__setitem__(path, out))
    model(images)
    expected = list(fused.values())
    with vt.record(model, what=["weights", "output", "norms"]) as trace:
        assert error(model(images), plain) < 1e-5
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert [tuple(a.output.shape[-2:]) for a in trace.values()] == [tuple(out.shape[-2:]) for out in expected]
    assert all(
        error(a.output.flatten(), unfolded(out, a).flatten()) < 1e-5
        for a, out in zip(trace.values(), expected, strict=True)
    )
    assert trace.image_size == (64, 80)
    assert len(trace.norms) == len(model.blocks)
    for block, matrix in trace.token_matrices().items():
        assert len(matrix) == 2
        assert matrix.shape[2] == matrix.shape[3]
        assert (matrix >= 0).all()
        sums = matrix.sum(-1)
        assert torch.allclose(sums[sums > 0], sums.new_ones(()), atol=1e-4) or name == "dat_tiny", block


def unfolded(out, attention):
    return attention.layout.unfold(out) if isinstance(attention.layout, Grouped) else out


def test_everything_can_be_recorded():
    model, images = tiny(), torch.randn(2, 3, 64, 64)
    with vt.record(model, what=("weights", "logits", "q", "k", "v", "output", "stream", "norms")) as trace:
        model(images)
    recorded = trace["blocks.1"]
    assert torch.allclose(recorded.logits, recorded.q @ recorded.k.transpose(-2, -1) / 8, atol=1e-5)
    assert torch.allclose(recorded.weights, recorded.logits.softmax(-1), atol=1e-6)
    assert torch.allclose(recorded.output, recorded.weights @ recorded.v, atol=1e-5)
    assert trace.stream["blocks.1"].shape == (2, 17, 192)
    assert torch.allclose(trace.norms["blocks.1"], trace.stream["blocks.1"].square().sum(-1).sqrt(), atol=1e-4)
    assert "weights (2, 3, 17, 17)" in repr(trace)


def test_only_what_was_requested_is_stored():
    model, images = tiny(), torch.randn(1, 3, 64, 64)
    with vt.record(model, what="norms") as trace:
        assert all(type(block.mixer.attend) is Attend for block in model.blocks)
        model(images)
    assert not trace.stream
    assert not len(trace)
    with vt.record(model, "blocks.2", what="v") as trace:
        model(images)
    with pytest.raises(AttributeError, match=r"weights was not recorded; use vt\.record"):
        _ = trace["blocks.2"].weights


def test_a_model_without_attention_has_a_stream():
    model = fill(vt.create_model("convnext_atto", depths=(1, 1, 1, 1), image_size=64))
    with vt.record(model, what=["stream", "norms"]) as trace:
        model(torch.randn(1, 3, 64, 64))
    assert trace.stream["blocks.1"].shape == (1, 8 * 8, model.dims[1])
    assert trace.norms["blocks.1"].shape == (1, 8 * 8)


@pytest.mark.parametrize("mixer", ["attention", "window", "local"])
def test_gradients_are_those_of_the_weights(mixer):
    """A weight moved a little moves the score by its gradient."""
    model = tiny(depth=1, mixer=mixer, patch_size=8, class_token=False, pool="mean").double()
    images = torch.randn(1, 3, 64, 64).double()
    with vt.record(model, gradients=True) as trace:
        model(images)[0, 3].backward()
    recorded = trace["blocks.0"]
    flat = recorded.gradient.flatten()
    place = int(flat.abs().argmax())
    op = model.blocks[0].mixer.attend
    original = op.weights

    def nudged(*given, **options):
        weights = original(*given, **options)
        step = torch.zeros_like(weights).flatten()
        step[int(refolded(torch.arange(len(flat)), recorded)[place])] = 1e-6
        return weights + step.reshape(weights.shape)

    op.weights = nudged
    with vt.record(model), torch.no_grad():
        moved = model(images)[0, 3]
    del op.weights
    assert (moved - model(images)[0, 3]).item() / 1e-6 == pytest.approx(flat[place].item(), rel=1e-4)


def refolded(numbers, attention):
    """The index, among the weights as computed, of each unfolded weight."""
    raw = numbers.reshape(attention.last_gradient.value.shape).double()
    shown = raw if attention.weights.ndim == 4 else attention.layout.unfold(raw)
    return shown.flatten().long()


def test_gradients_of_a_frozen_model_too_but_not_without_autograd():
    model = tiny().requires_grad_(False)
    with vt.record(model, gradients=True) as trace:
        model(torch.randn(1, 3, 64, 64))
        with pytest.raises(ValueError, match="no gradient has been computed yet"):
            _ = trace["blocks.0"].gradient
        model(torch.randn(1, 3, 64, 64))[0, 0].backward()
        assert trace["blocks.0"].gradient.abs().max() > 0
        with torch.no_grad(), pytest.raises(ValueError, match="needs autograd"):
            model(torch.randn(1, 3, 64, 64))
    with vt.record(model) as trace:
        model(torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match="gradients were not recorded"):
        _ = trace["blocks.0"].gradient


def test_a_wrapper_is_recorded_through_its_model():
    model, images = tiny(), torch.randn(1, 3, 64, 64)
    compiled = torch.compile(model, backend="eager")
    with ExitStack() as stack:
        with pytest.warns(UserWarning, match="call trace.model"):
            trace = stack.enter_context(vt.record(compiled))
        assert trace.model is model
        trace.model(images)
    assert len(trace) == 3


def test_windows_and_parts_of_patches_come_back_to_the_image():
    """MobileViT processes the four pixels of its patches as four images: their mean is returned."""
    model = family_member("mobilevit_xxs")
    with vt.record(model) as trace:
        model(torch.randn(2, 3, 64, 64))
    name, matrix = next(iter(trace.token_matrices().items()))
    assert trace[name].weights.shape[0] == 8
    assert matrix.shape[0] == 2


def test_strides_follow_the_image():
    model = family_member("swin_tiny")
    with vt.record(model) as trace:
        model.features(torch.randn(1, 3, 57, 78))
    assert [trace.stride(f"blocks.{index}") for index in (0, 2, 4, 6)] == [(4, 4), (8, 8), (16, 16), (32, 32)]


def test_measures_of_a_trace():
    """By hand from the weights of a ViT with a class token on a grid that is not square."""
    model = tiny(num_registers=2)
    with vt.record(model, gradients=True) as trace:
        model(torch.randn(2, 3, 48, 80))[:, 5].sum().backward()
    weights = trace["blocks.2"].weights
    assert torch.allclose(trace.class_attention()["blocks.2"], weights[:, :, 0, 3:].reshape(2, 3, 3, 5))
    entropy = -(weights * weights.log()).sum(-1).mean(-1)
    assert torch.allclose(trace.entropy()["blocks.2"], entropy, atol=1e-5)
    assert trace.rollout().shape == trace.gradient_rollout().shape == (2, 3, 5)
    places = torch.cartesian_prod(torch.arange(3.0), torch.arange(5.0)) * 16
    among = weights[..., 3:, 3:] / weights[..., 3:, 3:].sum(-1, keepdim=True)
    assert torch.allclose(
        trace.mean_distance()["blocks.2"], (among * torch.cdist(places, places)).sum(-1).mean(-1), atol=1e-3
    )
    assert trace.effective_rank()["blocks.0"].shape == (2, 3)


def test_a_swin_has_a_rollout_by_stage_only():
    model, images = family_member("swin_tiny"), torch.randn(1, 3, 64, 64)
    with vt.record(model) as trace:
        model(images)
    with pytest.raises(ValueError, match="select the layers of one stage"):
        trace.rollout()
    assert [distance.shape for distance in trace.mean_distance().values()][::2] == [(1, 3), (1, 6), (1, 12), (1, 24)]
    with vt.record(model, "blocks.[01]") as trace:
        model(images)
    assert trace.rollout().shape == (1, 16, 16)


def test_a_trace_displays_in_a_notebook():
    model = tiny()
    with vt.record(model) as trace:
        assert trace._repr_html_().startswith("<pre>")
        model(torch.randn(1, 3, 64, 64))
    assert "data:image/" in trace._repr_html_()


@pytest.mark.parametrize("name", ["vit_tiny_16", "swin_tiny", "pvt_tiny", "xcit_nano_12_16"])
def test_the_mean_map_averages_to_one(name):
    model = family_member(name)
    with vt.record(model) as trace:
        model(torch.randn(2, 3, 64, 96))
    for block, (attention, *_) in trace.self_attentions().items():
        recorded = trace.mean_map(block)
        assert recorded.shape == (2, *attention.grid)
        matrix = trace.token_matrix(block)
        num_queries = (matrix.sum(-1) > 0).sum(dim=(1, 2))
        received = matrix.sum(dim=(1, 2)) / num_queries[:, None] * matrix.shape[-1]
        assert torch.allclose(received.mean(1), torch.ones(()), atol=1e-4)
        assert torch.allclose(recorded.flatten(1), received[:, attention.num_prefix :], atol=1e-4)
    assert torch.equal(trace.mean_map(), trace.mean_map(trace.last_block()))


def test_the_last_backward_pass_counts():
    model, images = tiny(), torch.randn(1, 3, 64, 64)
    maps = []
    for classes in ([1], [0, 1]):
        with vt.record(model, gradients=True) as trace:
            logits = model(images)
            for number in classes:
                logits[:, number].sum().backward(retain_graph=True)
        maps.append(trace.gradient_rollout())
    assert torch.allclose(*maps)


@pytest.mark.parametrize("mixer", ["deformable", "deformable_points", "window"])
def test_a_trace_does_not_keep_the_graph(mixer):
    model = tiny(mixer=mixer, patch_size=8, class_token=False, pool="mean")
    with vt.record(model) as trace:
        model(torch.randn(1, 3, 64, 64))
    assert not any(matrix.requires_grad for matrix in trace.token_matrices().values())


def test_no_more_memory_is_held_than_was_requested():
    model = tiny()
    with vt.record(model, what="v") as trace:
        model(torch.randn(2, 3, 64, 64))
    assert all(a.v.untyped_storage().nbytes() == a.v.nbytes for a in trace.values())


def test_layouts_follow_their_weights_to_another_device():
    with FakeTensorMode():
        weights = torch.zeros(1, 1, 4, 4, 4, device="cuda")
        places = CellGroups(torch.zeros(4, 4, dtype=torch.long), torch.zeros(16, dtype=torch.long))
        assert (
            Grouped((4, 4), SimpleNamespace(cell_groups=lambda: places)).to_token_matrix(weights).device.type == "cuda"
        )


def test_a_block_with_two_attentions():
    model = tiny(mixer="window")
    with vt.record(model, "blocks.1") as trace:
        model(torch.randn(1, 3, 64, 64))
    assert set(trace) == {"blocks.1.mixer", "blocks.1.mixer.attend_prefix"}
    with pytest.raises(KeyError, match="has several attentions: choose"):
        trace["blocks.1"]
    with pytest.raises(KeyError, match=r"no self-attention between tokens recorded in 'blocks\.2'; did you mean"):
        trace.mean_map("blocks.2")
    assert torch.allclose(trace.token_matrix("blocks.1").sum(-1), torch.ones(()))
