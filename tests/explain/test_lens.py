"""The logit lens equals a truncated model, in every family, and leaves the model unchanged."""

import pytest
import torch

from tests.family import SMALLEST, shallow, small
from tests.parity import Skip, error
from vitreous.explain.lens import logit_lens
from vitreous.models import MODELS


def vit(depth=3, **overrides):
    return small("vit_tiny_16", depth=depth, dim=48, **overrides)


def two_at_the_end(name):
    """Options for few blocks, two of them in the last stage."""
    options = shallow(name)
    if "depths" in options:
        options["depths"] = (*options["depths"][:-1], 2)
    if "stages" in options:
        options["stages"] = (*options["stages"][:-1], MODELS[name].stages[-1].override(depth=2))
    return options


def stopped_after(model, index, images):
    """The slow reference: the whole model with every later block replaced by the identity."""
    later = model.blocks[index + 1 :]
    for block in later:
        block.forward = Skip().forward
    try:
        return model(images)
    finally:
        for block in later:
            del block.forward


def of_all_tokens(model, images):
    return torch.stack(list(model.heads(model.features(images)).values())).mean(0)


@torch.no_grad()
def test_it_equals_a_shallower_model():
    model, images = vit(num_registers=2), torch.randn(2, 3, 48, 80)
    logits = logit_lens(model, images)
    assert list(logits) == ["blocks.0", "blocks.1", "blocks.2"]
    for index, block_logits in enumerate(logits.values()):
        twin = vit(depth=index + 1, num_registers=2)
        twin.load_state_dict({name: model.state_dict()[name] for name in twin.state_dict()})
        assert error(block_logits, twin(images)) < 1e-6
    assert torch.equal(logits["blocks.2"], of_all_tokens(model, images))


@torch.no_grad()
def test_wrong_lenses_are_detected():
    model, images = vit(), torch.randn(2, 3, 64, 64)
    logits = logit_lens(model, images)
    streams = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, args, output: streams.append((args[0], output)))
    model(images)
    for (block_input, output), block_logits in zip(streams, logits.values(), strict=True):
        assert error(model.head(model.norm(output)[:, 0]), block_logits) < 1e-6
        wrong = {
            "before the block": model.head(model.norm(block_input)[:, 0]),
            "without the final norm": model.head(output[:, 0]),
            "the cells instead of the class token": model.head(model.norm(output)[:, 1:].mean(1)),
        }
        for version, numbers in wrong.items():
            assert error(numbers, block_logits) > 0.1, version


@torch.no_grad()
@pytest.mark.parametrize("name", SMALLEST)
def test_the_last_stage_of_every_family(name):
    model, images = small(name, **two_at_the_end(name)), torch.randn(1, 3, 64, 64)
    last = len(model.blocks) - 1
    logits = logit_lens(model, images)
    assert list(logits) == [f"blocks.{last - 1}", f"blocks.{last}"]
    assert error(logits[f"blocks.{last - 1}"], stopped_after(model, last - 1, images)) < 1e-6
    assert torch.equal(logits[f"blocks.{last}"], of_all_tokens(model, images))
    assert error(*logits.values()) > 1e-2


@torch.no_grad()
def test_maps_that_become_tokens_are_still_one_stream():
    """EfficientFormer's last stage pools over maps first and attends over tokens then."""
    model, images = small("efficientformer_l1", depths=(1, 1, 1, 3)), torch.randn(1, 3, 64, 96)
    logits = logit_lens(model, images)
    assert list(logits) == ["blocks.3", "blocks.4", "blocks.5"]
    for index in (3, 4, 5):
        assert error(logits[f"blocks.{index}"], stopped_after(model, index, images)) < 1e-6


def test_an_equal_shape_is_not_the_same_stream():
    """On a single patch both stages have one token of equal width, but a downsampling layer lies between them."""
    stage = MODELS["vit_down_tiny_16"].stages[0].override(dim=48, depth=1)
    model = small("vit_down_tiny_16", stages=(stage, stage))
    assert list(logit_lens(model, torch.randn(1, 3, 16, 16))) == ["blocks.1"]


@torch.no_grad()
def test_a_block_that_is_used_several_times():
    model, images = vit(depth=4), torch.randn(1, 3, 64, 64)
    model.blocks[2] = model.blocks[1]
    model.blocks[3] = model.blocks[1]
    logits = logit_lens(model, images)
    assert list(logits) == [f"blocks.{index}" for index in range(4)]
    model.blocks = model.blocks[:3]
    assert error(logits["blocks.2"], model(images)) < 1e-6


def assert_untouched(model):
    for block in model.blocks:
        assert "forward" not in vars(block)
        assert not block._forward_hooks


def test_nothing_is_left_behind():
    model, images = vit(), torch.randn(1, 3, 64, 64)
    before = model(images)
    logits = logit_lens(model, images)
    assert_untouched(model)
    assert torch.equal(model(images), before)
    assert not any(block_logits.requires_grad for block_logits in logits.values())


@pytest.mark.parametrize("calls_before_failing", [0, 2])
def test_nothing_is_left_behind_by_a_failure(calls_before_failing):
    model = vit()
    logits = iter([torch.zeros(1, 7)] * calls_before_failing)
    model.head.forward = lambda x: next(logits)
    with pytest.raises(StopIteration):
        logit_lens(model, torch.randn(1, 3, 64, 64))
    assert_untouched(model)


def test_a_custom_forward_survives():
    model = vit()
    own = Skip().forward
    model.blocks[1].forward = own
    logits = logit_lens(model, torch.randn(1, 3, 64, 64))
    assert vars(model.blocks[1])["forward"] is own
    assert torch.equal(logits["blocks.0"], logits["blocks.1"])


def test_without_a_classifier_it_gives_the_features():
    model = vit()
    model.reset_head(0)
    assert {tuple(block_logits.shape) for block_logits in logit_lens(model, torch.randn(2, 3, 64, 64)).values()} == {
        (2, 48)
    }


def test_bad_input():
    with pytest.raises(ValueError, match="needs a Vitreous model, got Linear"):
        logit_lens(torch.nn.Linear(1, 1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="smaller than one patch"):
        logit_lens(vit(), torch.randn(1, 3, 8, 8))
