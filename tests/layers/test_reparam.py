"""Branches equal a loop over cells, and their folded convolution equals the branches."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.mixer import MixerContext
from vitreous.layers.rep_conv import RepConvMixer, RepConvTokens
from vitreous.layers.reparam import ConvNorm, ConvPosition, RepConv, RepMixer, fold_, identity_kernel, mobileone_conv
from vitreous.models.pyramid import PyramidConfig, StageConfig

GRIDS = [(1, 1), (3, 5), (4, 6), (7, 10)]
CONTEXT = MixerContext(dim=6, num_heads=1, grid=(4, 6))


def naive_norm(norm, value):
    return (value - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias


def naive_cell(weight, cells, y, x):
    """One cell of a depthwise convolution with zero padding."""
    half, total = weight.shape[-1] // 2, torch.zeros_like(cells[0, 0])
    for dy in range(-half, half + 1):
        for dx in range(-half, half + 1):
            if 0 <= y + dy < cells.shape[0] and 0 <= x + dx < cells.shape[1]:
                total += weight[:, 0, dy + half, dx + half] * cells[y + dy, x + dx]
    return total


def naive(mixer, tokens, grid):
    """One image, one cell, one branch at a time."""
    cells, out = tokens.reshape(*grid, -1), []
    for y in range(grid[0]):
        for x in range(grid[1]):
            total = naive_norm(mixer.conv.identity, cells[y, x])
            for branch in mixer.conv.branches:
                total = total + naive_norm(branch.norm, naive_cell(branch.conv.weight, cells, y, x))
            out.append(total)
    return torch.stack(out)


@pytest.mark.parametrize("options", [{}, {"kernel": 5, "branches": 2}, {"kernel": 1}])
@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_the_mixer_equals_the_loop_and_so_does_its_folded_form(grid, options):
    mixer = fill(RepConvTokens(CONTEXT, **options)).double()
    tokens = torch.randn(2, grid[0] * grid[1], 6).double()
    expected = torch.stack([naive(mixer, image, grid) for image in tokens])
    assert error(mixer(tokens, grid), expected) < 1e-12
    assert error(vt.fold(mixer)(tokens, grid), expected) < 1e-12


PARTS = {
    "k×k": lambda: RepConv(6, 12, (3,)),
    "k×k, stride": lambda: RepConv(6, 12, (3,), stride=2),
    "three of k×k": lambda: RepConv(6, 12, (3, 3, 3)),
    "1×1": lambda: mobileone_conv(6, 12, 1),
    "1×1 and identity": lambda: mobileone_conv(6, 6, 1),
    "scale": lambda: mobileone_conv(6, 12, 3, stride=2),
    "scale and identity": lambda: mobileone_conv(6, 6, 3),
    "groups": lambda: mobileone_conv(6, 6, 5, groups=2, branches=2),
    "depthwise": lambda: mobileone_conv(6, 6, 3, groups=6),
    "depthwise, stride": lambda: mobileone_conv(6, 6, 3, stride=2, groups=6),
    "one channel makes two": lambda: mobileone_conv(6, 12, 3, groups=6),
    "large and small": lambda: RepConv(6, 12, (7, 3), stride=2, groups=6),
    "small and large": lambda: RepConv(6, 12, (3, 7)),
    "stride 4": lambda: RepConv(6, 12, (7, 3, 1), stride=4, groups=3),
    "mixer": lambda: RepMixer(6),
    "mixer, 7×7": lambda: RepMixer(6, 7, layer_scale=0.5),
    "position": lambda: ConvPosition(6),
}


@pytest.mark.parametrize("size", [(8, 8), (9, 14), (1, 1)])
@pytest.mark.parametrize("kind", PARTS)
@torch.no_grad()
def test_folded_equals_unfolded(kind, size):
    part, images = fill(PARTS[kind]()), torch.randn(2, 6, *size)
    conv, expected = part.fold(), part(images)
    assert type(conv) is nn.Conv2d
    assert conv.bias is not None
    assert error(conv(images), expected) < 1e-5
    assert expected.shape[2:] == tuple(-(-side // part.stride) for side in size)
    assert error(part.double().fold()(images.double()), part(images.double())) < 1e-12


@pytest.mark.parametrize("kind", PARTS)
def test_every_branch_matters(kind):
    """Sensitivity check: without any one tensor the folded filter is different."""
    part = fill(PARTS[kind]())
    expected = part.fold()
    for name, tensor in part.state_dict().items():
        if not tensor.is_floating_point():
            continue
        other = copy.deepcopy(part)
        other.state_dict()[name].mul_(2)
        moved = max((a - b).abs().max() for a, b in zip(other.fold().parameters(), expected.parameters(), strict=True))
        assert moved > 1e-2, name


def test_the_identity_kernel_is_the_identity():
    images = torch.randn(1, 6, 5, 4)
    for groups, kernel in ((1, 3), (2, 5), (6, 1)):
        conv = nn.Conv2d(6, 6, kernel, padding=kernel // 2, groups=groups, bias=False)
        conv.weight.data = identity_kernel(conv.weight)
        assert torch.equal(conv(images), images)


def test_folding_draws_no_random_numbers_and_shares_no_memory():
    part = fill(nn.Sequential(ConvPosition(6), mobileone_conv(6, 6, 3)))
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    folded = vt.fold(part)
    assert torch.equal(torch.rand(1), expected)
    images = torch.randn(1, 6, 4, 4)
    before = part(images)
    for parameter in folded.parameters():
        assert parameter.requires_grad
        parameter.data.zero_()
    assert torch.equal(part(images), before)
    own = ConvPosition(6)
    own.fold().bias.data.fill_(7)
    assert own.conv.bias.abs().max() < 1


def test_foldable_modules_are_found_at_any_depth():
    model = nn.ModuleDict(
        {"a": nn.Sequential(mobileone_conv(6, 6, 3), nn.ModuleList([RepMixer(6)])), "b": nn.Conv2d(6, 6, 1)}
    )
    assert fold_(model) == 2
    assert {type(m) for m in model.modules()} == {nn.ModuleDict, nn.Sequential, nn.ModuleList, nn.Conv2d}
    assert fold_(model) == 0


def own_stages():
    stages = (StageConfig(dim=8, depth=1, num_heads=1, mixer="rep_conv"), StageConfig(dim=16, depth=1, num_heads=1))
    return PyramidConfig(image_size=32, num_classes=3, stages=stages)


def vit():
    options = {"class_token": False, "pool": "mean", "depth": 2, "image_size": 64, "num_classes": 5}
    return vt.create_model("vit_tiny_16", mixer=RepConvMixer(branches=2), **options)


@pytest.mark.parametrize("build", [vit, lambda: own_stages().build()], ids=["vit", "own stages"])
def test_a_model_with_this_mixer_folds_and_is_saved_and_loaded(build, tmp_path):
    model, images = fill(build()), torch.randn(2, 3, 57, 78)
    model.name_classes("abcde"[: model.config.num_classes])
    folded = vt.fold(model.train())
    assert model.training
    assert not folded.training
    assert type(folded) is type(model)
    assert folded.spec == model.spec
    vt.save(folded, tmp_path / "folded.safetensors")
    again = vt.load(tmp_path / "folded.safetensors").eval()
    assert (again.config, again.edits, model.edits) == (model.config, (vt.Fold(),), ())
    with torch.no_grad():
        assert error(folded(images), model.eval()(images)) < 1e-5
        assert torch.equal(again(images), folded(images))
    assert not any(isinstance(module, ConvNorm) for module in again.modules())


def test_trains_in_both_forms():
    for model in (vit().train(), vt.fold(vit()).train()):
        model(torch.randn(2, 3, 64, 64)).sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


BAD = [
    (lambda: vt.fold(vt.create_model("vit_tiny_16", depth=1)), "nothing to fold inside this ViT"),
    (lambda: vt.fold(vt.fold(vit())), "nothing to fold inside this ViT: it is folded already, or has no"),
    (lambda: vt.fold(RepMixer(6)), "nothing to fold inside this RepMixer"),
    (lambda: RepConv(6, 12, ()), "kernels must have at least one size"),
    (lambda: RepConv(6, 12, (2,)), "kernel must be odd, to be centered on a cell; got 2, choose 3"),
    (
        lambda: RepConv(6, 12, (3,), identity=True),
        "identity needs stride 1 and equal widths, got 6 → 12 with stride 1",
    ),
    (lambda: RepConvMixer(kernel=4), "kernel must be odd"),
    (
        lambda: RepConvMixer().build(MixerContext(dim=6, num_heads=1, grid=(2, 2), num_prefix=1)),
        "they have no neighbors on the grid",
    ),
    (lambda: RepConvTokens(CONTEXT)(torch.randn(1, 4, 6), None), "need the whole grid"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_invalid_options_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


LEARN = """
import torch
from vitreous.layers.reparam import ConvNorm
conv = ConvNorm(3, 24, 1, stride=2)
for _ in range(30):
    between = [torch.empty(int(torch.randint(1, 5000, (1,)))) for _ in range(50)]
    conv(torch.randn(32, 3, 64, 64).contiguous(memory_format=torch.channels_last)).square().sum().backward()
print("alive")
"""


@pytest.mark.slow
def test_training_with_strided_1x1_convolutions_does_not_crash():
    """In a subprocess, since PyTorch's strided 1×1 convolution crashes on some CPUs."""
    result = subprocess.run([sys.executable, "-c", LEARN], capture_output=True, text=True)
    assert result.stdout == "alive\n", result.returncode


def test_a_folded_model_is_in_eval_mode_and_frozen_parameters_stay_frozen():
    model = vt.create_model("fastvit_t8", image_size=64, num_classes=3, depths=(1, 1, 1, 1)).requires_grad_(False)
    folded = vt.fold(model)
    assert not any(module.training for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert any(parameter.requires_grad for parameter in vt.fold(model.requires_grad_(True)).parameters())
