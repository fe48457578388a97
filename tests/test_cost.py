"""The formulas equal torch's counters, and the bytes are what autograd really saves."""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import vitreous as vt
from tests.family import others_slowly
from vitreous.layers.attention import Attend
from vitreous.layers.mixers import MIXERS
from vitreous.layers.reduction import Reduction
from vitreous.plan import plan

SIZES = [(224, 224), (57, 78)]


@pytest.mark.parametrize("name", others_slowly(vt.list_models()))
def test_macs_and_parameters_equal_the_counters(name):
    for size in SIZES:
        with torch.device("meta"):
            model = vt.create_model(name, image_size=size)
            with FlopCounterMode(display=False) as counter:
                model(torch.empty(2, 3, *size))
        cost = vt.cost(name, size, batch=2)
        assert 2 * cost.macs == counter.get_total_flops()
        assert cost.parameters == sum(p.numel() for p in model.parameters())


WITHOUT_PREFIX = {"class_token": False, "pool": "mean"}


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_in_a_vit_is_counted(name):
    options = {"mixer": name, "depth": 2} | (WITHOUT_PREFIX if MIXERS[name].no_prefix else {})
    for size in SIZES:
        with torch.device("meta"):
            model = vt.create_model("vit_tiny_16", image_size=size, **options)
            with FlopCounterMode(display=False) as counter:
                model(torch.empty(2, 3, *size))
        assert 2 * vt.cost("vit_tiny_16", size, batch=2, **options).macs == counter.get_total_flops()


def saved_bytes(run, model, size, batch):
    """Bytes of every storage that autograd keeps, parameters left out, each once."""
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor keeps its address taken
        return tensor

    images = torch.randn(batch, 3, *size)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run(images)
    assert output.requires_grad
    return sum(nbytes for nbytes, _ in seen.values())


def whole(model):
    """All tokens in all blocks: a ViT asked only for logits leaves some of the last one out."""
    return lambda images: sum(model.heads(model.features(images)).values())


CASES = [
    ("vit_tiny_16", {}),
    ("deit_tiny_distilled_16", {}),
    ("vit_tiny_16", {"pool": "mean", "class_token": False, "stem": "conv", "position": "sincos_2d"}),
    ("vit_tiny_16", {"stem": "residual", "depth": 2}),
    *(("vit_tiny_16", {"mixer": name, "depth": 2}) for name in ("performer", "local", "dilated", "block_sparse")),
    ("vit_small_32", {"pool": "mean", "final_norm": "pooled"}),
    ("dinov2_small_reg4_14", {"num_classes": 10}),
    ("dinov2_giant_reg4_14", {"depth": 2, "num_classes": 10}),
    ("resnet18", {}),
    ("resnet50", {"num_classes": 10}),
    ("resnet18", {"stem": "small", "depths": (1, 1, 1, 1)}),
    *((name, {"depths": (1, 1, 1, 1)}) for name in ("poolformer_s12", "caformer_s18")),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("size", [(112, 224), (96, 96)])
def test_activation_bytes_are_what_autograd_saves(name, options, size):
    model = vt.create_model(name, image_size=size, **options).train()
    real = saved_bytes(whole(model), model, size, batch=2)
    assert vt.cost(name, size, batch=2, **options).activation_bytes == pytest.approx(real, rel=0.02)
    assert vt.cost(model, size, batch=2).activation_bytes == pytest.approx(real, rel=0.02)


CHECKPOINTED = [
    ("vit_tiny_16", {}, 0.25),
    ("resnet18", {}, 0.75),
    ("resnet18", {"stem": "small", "depths": (1, 1, 1, 1)}, 0.85),
]


@pytest.mark.parametrize(("name", "options", "most"), CHECKPOINTED)
def test_checkpointed_bytes_are_what_autograd_saves(name, options, most):
    """Between the passes: what blocks take in, and all that is outside them."""
    model = vt.create_model(name, image_size=(112, 224), **options).train()
    for block in model.blocks:
        block.forward = lambda *args, run=block.forward: checkpoint(run, *args, use_reentrant=False)
    real = saved_bytes(whole(model), model, (112, 224), batch=2)
    cost = vt.cost(name, (112, 224), batch=2, **options)
    assert cost.checkpointed_bytes - max(cost.block_bytes) == pytest.approx(real, rel=0.02)
    assert cost.checkpointed_bytes < most * cost.activation_bytes


def test_one_small_image_can_be_costed():
    """A map of one cell, on which BatchNorm refuses to train with one image."""
    one, two = vt.cost("resnet18", 32), vt.cost("resnet18", 32, batch=2)
    assert one.num_tokens == two.num_tokens == 1
    assert 2 * one.macs == two.macs


def test_known_figures():
    """The documents call 17.6 the GFLOPs of ViT-B and 4.1 those of ResNet-50; they are GMACs."""
    cost = vt.cost("vit_base_16")
    assert cost.macs / 1e9 == pytest.approx(17.56, abs=0.01)
    assert cost.parameters == 86_567_656
    assert vt.cost("resnet50").macs / 1e9 == pytest.approx(4.09, abs=0.01)
    d, n, depth = 768, 197, 12
    blocks = sum(cost.parts[part].macs for part in ("mixer", "mlp"))
    assert blocks == depth * (12 * n * d**2 + 2 * n**2 * d)
    assert cost.quadratic_macs == depth * 2 * n**2 * d
    assert cost.attention_bytes == depth * 12 * n**2 * 4
    assert cost.crossover_tokens == pytest.approx(6 * d, rel=0.02)


def test_growth():
    small, large = vt.cost("vit_base_16", 224), vt.cost("vit_base_16", 448)
    assert large.num_tokens - 1 == 4 * (small.num_tokens - 1)
    assert large.quadratic_macs / small.quadratic_macs == pytest.approx(16, rel=0.05)
    assert large.parts["mlp"].macs / small.parts["mlp"].macs == pytest.approx(4, rel=0.05)


LINEAR = ["window", "covariance", "performer", "local", "dilated", "block_sparse", Reduction(method="pool")]


@pytest.mark.parametrize("mixer", ["attention", "reduction"])
@pytest.mark.parametrize("size", SIZES)
def test_attention_to_more_keys_in_larger_images_is_quadratic(mixer, size):
    cost = vt.cost("vit_tiny_16", size, mixer=mixer, depth=2)
    assert cost.quadratic_macs == sum(macs for m, macs in cost.module_macs.items() if isinstance(m, Attend)) > 0


@pytest.mark.parametrize("mixer", ["attention", "reduction"])
def test_the_crossover_is_where_half_is_quadratic(mixer):
    crossover = vt.cost("vit_tiny_16", mixer=mixer, depth=2).crossover_tokens
    there = vt.cost("vit_tiny_16", 16 * round(crossover**0.5), mixer=mixer, depth=2)
    assert there.quadratic_macs / there.macs == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("mixer", LINEAR, ids=str)
@pytest.mark.parametrize("size", [*SIZES, (16, 16)])
def test_attention_to_a_fixed_number_of_keys_is_not(mixer, size):
    """Small images do not mislead, in which a window or a neighborhood is the whole grid."""
    cost = vt.cost("vit_tiny_16", size, mixer=mixer, depth=2)
    assert cost.quadratic_macs == 0
    assert cost.crossover_tokens == math.inf


def test_precision_and_batch():
    full, half = vt.cost("vit_tiny_16", batch=4), vt.cost("vit_tiny_16", batch=4, precision="bf16")
    assert half.activation_bytes == pytest.approx(full.activation_bytes / 2, rel=0.02)
    assert full.state_bytes == 16 * full.parameters
    assert half.state_bytes == 18 * half.parameters
    assert full.macs == 4 * vt.cost("vit_tiny_16").macs


def test_a_model_is_left_as_it_was():
    model = vt.create_model("vit_tiny_16", depth=1).eval()
    vt.cost(model, 384)
    assert not model.training
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert not model.blocks[0].mixer.attend._forward_hooks


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vt.cost("vit_tniy_16"), "did you mean 'vit_tiny_16'"),
        (lambda: vt.cost("vit_tiny_16", 8), "smaller than patch_size"),
        (lambda: vt.cost("vit_tiny_16", batch=0), "batch must be at least 1"),
        (lambda: vt.cost("vit_tiny_16", precision="fp8"), "precision must be one of"),
        (lambda: plan("vit_tiny_16", images=0, devices=1, memory=1e9, flops=1e12), "images must be positive"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


GIANT = {"images": 1e9, "devices": 256, "memory": 80e9, "flops": 400e12}


def test_a_plan_by_hand():
    made = plan("vit_giant_14", **GIANT)
    cost = vt.cost("vit_giant_14", precision="bf16")
    assert made.total_flops == 6 * cost.macs * 1e9
    assert made.seconds == pytest.approx(6 * cost.macs * 1e9 / (256 * 400e12 * 0.4))
    assert made.chosen.shards == 1  # 18 GB of states leave room for the 16 images a device has
    assert made.chosen.micro_batch == int((0.9 * 80e9 - 18 * cost.parameters) // cost.activation_bytes)


def test_a_plan_shards_and_checkpoints_only_when_it_must():
    small = plan("vit_giant_14", **(GIANT | {"memory": 16e9}))
    assert small.chosen.shards > 1
    assert not small.chosen.checkpointing
    tiny = plan("vit_giant_14", **(GIANT | {"memory": 3e9}))
    assert tiny.chosen.checkpointing
    assert tiny.total_flops == pytest.approx(small.total_flops * 4 / 3)
    assert plan("vit_giant_14", **(GIANT | {"memory": 1e8})).chosen is None
