"""Attribution methods against values computed by hand on a linear model, slow loops, and captum."""

import captum.attr
import pytest
import torch

import vitreous as vt
from tests.explain.toy import toy
from tests.family import SMALLEST, tiny
from tests.parity import error, fill
from vitreous.explain.attribution import (
    ATTENTION_METHODS,
    METHODS,
    cell_size,
    integrated_gradients,
    methods_for,
    occlusion,
)
from vitreous.explain.recorder import Attention
from vitreous.explain.score import class_score, scores
from vitreous.explain.trace import Trace

WITHOUT_ATTENTION = {"resnet18", "convnext_atto", "poolformer_s12"}
#: One per kind: cells, windows, reduced keys, channels, a late class token, parts of an image, and no attention.
KINDS = {"vit_tiny_16", "swin_tiny", "pvt_v2_b0", "xcit_nano_12_16", "cvt_13", "mobilevit_xxs", "poolformer_s12"}
FAMILIES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in KINDS)) for name in SMALLEST]
TARGETS = torch.tensor([1, 4])
SCORE = class_score(TARGETS)


def vit(**overrides):
    return fill(vt.create_model("vit_tiny_16", **({"depth": 3, "image_size": 64, "num_classes": 7} | overrides)))


def photos():
    return torch.randn(2, 3, 48, 80)


def test_a_linear_model_by_hand():
    """Hiding a cell costs its weight times its brightness, and along any straight path so does its gradient."""
    model, images = toy([2.0, 1.0, -1.0, 0.5], (4, 4)), torch.full((1, 1, 4, 4), 3.0)
    lost = torch.tensor([[6.0, 3.0], [-3.0, 1.5]])
    enlarged = lost.repeat_interleave(2, 0).repeat_interleave(2, 1)[None]
    heat = occlusion(model, images, class_score(torch.tensor([1])), window=2)
    assert torch.allclose(heat, enlarged)
    heat = integrated_gradients(model, images, class_score(torch.tensor([1])), steps=1)
    assert torch.allclose(heat, enlarged / 4)
    assert not integrated_gradients(model, images, class_score(torch.tensor([0]))).any()


def test_overlapping_windows_share_by_hand():
    """Three windows of two pixels over four: the pixels between belong to two of them and get the mean."""
    model, images = toy([4.0, 8.0], (2, 4)), torch.ones(1, 1, 2, 4)
    heat = occlusion(model, images, class_score(torch.tensor([1])), window=2, stride=(2, 1))
    assert torch.allclose(heat[0], torch.tensor([4.0, 5.0, 7.0, 8.0]).expand(2, 4))


@pytest.mark.parametrize(("window", "stride"), [((16, 16), (16, 16)), ((20, 24), (12, 17)), ((48, 80), (1, 1))])
def test_occlusion_is_that_of_captum(window, stride):
    model, images = vit(), photos()
    reference = captum.attr.Occlusion(model).attribute(
        images, sliding_window_shapes=(3, *window), strides=(3, *stride), target=TARGETS, baselines=0.25
    )
    found = occlusion(model, images, SCORE, window=window, stride=stride, baseline=torch.tensor(0.25), batch_size=5)
    assert error(found, reference[:, 0].detach()) < 1e-5


@pytest.mark.parametrize(("rule", "name"), [("gauss-legendre", "gausslegendre"), ("midpoint", "riemann_middle")])
def test_integrated_gradients_are_those_of_captum(rule, name):
    model, images, baseline = vit(), photos(), torch.randn(1, 3, 48, 80)
    reference = captum.attr.IntegratedGradients(model).attribute(
        images, baselines=baseline, target=TARGETS, n_steps=5, method=name
    )
    found = integrated_gradients(model, images, SCORE, steps=5, rule=rule, baseline=baseline, batch_size=3)
    assert error(found, reference.sum(dim=1).detach()) < 1e-5
    other = {"gauss-legendre": "midpoint", "midpoint": "gauss-legendre"}[rule]
    assert error(integrated_gradients(model, images, SCORE, steps=5, rule=other, baseline=baseline), found) > 1e-3


def test_integrated_gradients_are_complete():
    """An image's heat sums to what the target's score has gained over the baseline; one step is not enough."""
    model, images = vit(), photos()
    with torch.no_grad():
        gained = scores(model, images, SCORE) - scores(model, torch.zeros_like(images), SCORE)
    sums = [integrated_gradients(model, images, SCORE, steps=steps).sum(dim=(1, 2)) for steps in (1, 64)]
    assert error(sums[1], gained) < 1e-3
    assert error(sums[0], gained) > 1e-2


@pytest.mark.parametrize("method", ["occlusion", "integrated gradients"])
def test_an_image_equal_to_the_baseline_has_no_heat(method):
    """Up to rounding, which depends on how many images are computed at once."""
    model, images = vit().double(), photos().double()
    usual = METHODS[method](model, images, SCORE, baseline=torch.zeros_like(images))
    assert METHODS[method](model, images, SCORE, baseline=images).abs().max() < 1e-12 * usual.abs().max()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "random"])
def test_an_image_does_not_depend_on_its_batch(method):
    model, images = vit(), photos()
    both = METHODS[method](model, images, SCORE)
    alone = METHODS[method](model, images[1:], class_score(TARGETS[1:]))
    assert error(both[1:], alone) < 1e-5


def test_class_attention_is_the_first_row_of_the_last_block():
    model, images = vit(num_registers=2), photos()
    with vt.record(model) as trace:
        model(images)
    expected = trace["blocks.2"].weights[:, :, 0, 3:].mean(dim=1).reshape(2, 3, 5)
    assert error(METHODS["class attention"](model, images, SCORE), expected) < 1e-6


def test_pooled_cells_are_used_instead_of_an_unread_class_token():
    model, images = vit(pool="mean"), photos()
    with vt.record(model) as trace:
        model(images)
    weights = trace["blocks.2"].weights
    cells, unread = weights[:, :, 1:, 1:].mean(dim=(1, 2)), weights[:, :, 0, 1:].mean(dim=1)
    heat = METHODS["class attention"](model, images, SCORE).flatten(1)
    assert error(heat, cells) < 1e-6
    assert error(heat, unread) > 1e-2


def test_mean_attention_counts_every_query_alike():
    model, images = vit(), photos()
    with vt.record(model) as trace:
        model(images)
    expected = 16 * trace["blocks.2"].weights.mean(dim=(1, 2))[:, 1:].reshape(2, 3, 5)
    assert error(METHODS["mean attention"](model, images, SCORE), expected) < 1e-6


def slow_rollout(model, images, targets):
    """Layer by layer, image by image; gradients layer by layer."""
    with vt.record(model, gradients=True) as trace:
        model(images).gather(1, targets[:, None]).sum().backward()
    maps = []
    for image in range(len(images)):
        plain, weighted = torch.eye(16), torch.eye(16)
        for attention in trace.values():
            weights, slope = attention.weights[image], attention.gradient[image]
            plain = (weights.mean(dim=0) + torch.eye(16)) / 2 @ plain
            raised = torch.stack([(a * g).clamp(min=0) for a, g in zip(weights, slope, strict=True)]).mean(dim=0)
            weighted = weighted + raised @ weighted
        maps.append(torch.stack([plain[0, 1:], weighted[0, 1:]]).reshape(2, 3, 5))
    return torch.stack(maps, dim=1)


def test_rollouts_use_all_layers_and_only_one_depends_on_the_class():
    model, images = vit(), photos()
    plain, weighted = slow_rollout(model, images, TARGETS)
    assert error(METHODS["rollout"](model, images, SCORE), plain) < 1e-5
    assert error(METHODS["gradient rollout"](model, images, SCORE), weighted) < 1e-5
    assert error(METHODS["rollout"](model, images, class_score(TARGETS + 1)), plain) < 1e-5
    assert error(METHODS["gradient rollout"](model, images, class_score(TARGETS + 1)), weighted) > 1e-2


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_supports_the_methods_that_apply(name):
    model = tiny(name)
    found = methods_for(model)
    assert set(METHODS) - set(found) == (set(ATTENTION_METHODS) if name in WITHOUT_ATTENTION else set())
    images, targets = torch.randn(2, 3, 64, 96), torch.tensor([0, 6])
    for method in set(found) & {*ATTENTION_METHODS, "random"}:
        heat = METHODS[method](model, images, class_score(targets))
        assert heat.ndim == 3
        assert len(heat) == 2
        assert heat.shape[2] > heat.shape[1]
        assert heat.isfinite().all()
        assert heat.std() > 0, f"{method} is constant"


def test_early_stages_are_not_laid_out(monkeypatch):
    """Their token matrices would not fit into memory: Swin's first stage has 3,136 tokens at 224 pixels."""
    tokens, token_matrix = [], Attention.token_matrix

    def watched(attention):
        result = token_matrix(attention)
        tokens.append(result.shape[-1])
        return result

    monkeypatch.setattr(Attention, "token_matrix", watched)
    monkeypatch.setattr(Trace.iter_token_matrices, "__defaults__", (watched,))
    assert METHODS["rollout"](tiny("swin_tiny"), torch.randn(1, 3, 64, 96), class_score(TARGETS[:1])).shape == (1, 2, 3)
    assert tokens == [6, 6]


@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_without_attention_the_error_names_the_reason(method):
    with pytest.raises(ValueError, match="has no attention"):
        METHODS[method](tiny("resnet18"), torch.randn(1, 3, 64, 64), class_score(torch.tensor([0])))


def test_channel_attention_has_no_maps():
    model = fill(vt.create_model("vit_tiny_16", depth=2, image_size=64, num_classes=7, mixer="covariance"))
    assert set(methods_for(model)) == {"occlusion", "integrated gradients", "random"}
    with pytest.raises(ValueError, match="none of the recorded layers has self-attention between tokens"):
        METHODS["rollout"](model, photos(), SCORE)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_as_it_was(method):
    """Computed in eval mode despite dropout; training mode, requires_grad and weights are restored."""
    model, images = vit(drop_rate=0.5), photos()
    torch.manual_seed(1)
    in_eval = METHODS[method](model, images, SCORE)
    model.train()
    model.blocks[1].eval()
    model.norm.weight.requires_grad_(False)
    torch.manual_seed(1)
    first = METHODS[method](model, images, SCORE)
    assert torch.equal(first, in_eval)
    assert not first.requires_grad
    assert model.training
    assert not model.blocks[1].mlp.training
    assert not model.norm.weight.requires_grad
    assert model.head.weight.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_is_controlled_by_the_seed():
    model, images = vit(), photos()
    torch.manual_seed(3)
    first, second = METHODS["random"](model, images, SCORE), METHODS["random"](model, images, SCORE)
    torch.manual_seed(3)
    assert first.shape == (2, 3, 5)
    assert torch.equal(METHODS["random"](model, images, SCORE), first)
    assert not torch.equal(first, second)


BAD = [
    (lambda m, x: occlusion(m, x, SCORE, window=8, stride=9), "leaves gaps"),
    (lambda m, x: occlusion(m, x, SCORE, window=(0, 3)), "window must be a positive int"),
    (lambda m, x: occlusion(m, x, class_score(torch.tensor([1, 7]))), r"targets must lie in 0 … 6, got \[1, 7\]"),
    (lambda m, x: integrated_gradients(m, x, class_score(torch.tensor([1]))), "one class index per image: 2, got 1"),
    (lambda m, x: METHODS["gradient rollout"](m, x, TARGETS), "score must be a function of the outputs"),
    (
        lambda m, x: occlusion(m, x, lambda outputs: outputs["class"]),
        r"one number per image, got shape \(64, 7\)",
    ),
    (lambda m, x: integrated_gradients(m, x, SCORE, steps=0), "steps must be at least 1, got 0"),
    (lambda m, x: integrated_gradients(m, x, SCORE, rule="simpson"), "'gauss-legendre' or 'midpoint', got 'simpson'"),
    (lambda m, x: occlusion(vit(num_classes=0), x, SCORE), "the model has no classes"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(vit(), photos())


def test_random_orders_the_cells_that_are_hidden():
    """A random map on the coarsest stride, enlarged, would be smooth and too easy a control."""
    model, images = tiny("swin_tiny"), torch.randn(2, 3, 64, 96)
    assert cell_size(model, (64, 96)) == (8, 8)
    assert METHODS["random"](model, images, class_score(torch.tensor([0, 1]))).shape == (2, 8, 12)
