"""The hybrid equals torchvision's features followed by PyTorch's encoder layers, with the same weights."""

import re

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor

import vitreous as vt
from tests.parity import TOLERANCE, Skip, error, fill
from vitreous.models.hybrid_resnet import VARIANTS, hybrid_resnet


class ByHand(nn.Module):
    """Built from PyTorch and torchvision modules, for one image size."""

    def __init__(self, backbone, config, num_cells):
        super().__init__()
        node, dim = f"layer{config.num_stages}", config.dim
        self.cnn = create_feature_extractor(torchvision.models.get_model(backbone), {node: "map"})
        width = 64 * 2 ** (config.num_stages - 1) * (4 if config.block == "bottleneck" else 1)
        self.project = nn.Conv2d(width, dim, 1)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.position = nn.Parameter(torch.empty(1, 1 + num_cells, dim))
        options = {"activation": "gelu", "batch_first": True, "norm_first": True, "layer_norm_eps": 1e-6}
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, config.num_heads, 4 * dim, 0.0, **options) for _ in range(config.depths[-1])
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, config.num_classes)

    def forward(self, images):
        cells = self.project(self.cnn(images)["map"]).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(images), -1, -1), cells], dim=1) + self.position
        for layer in self.encoder:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


RENAMES = [
    (r"cnn\.conv1", "stem.conv"),
    (r"cnn\.bn1", "stem.norm"),
    (r"cnn\.layer(\d)", lambda match: f"stages.{int(match[1]) - 1}"),
    (r"encoder\.", "layers."),
    (r"self_attn\.in_proj_", "mixer.qkv."),
    (r"self_attn\.out_proj", "mixer.proj"),
    (r"linear(\d)", r"mlp.fc\1"),
    (r"^position$", "position.table"),
]


def ours_named(state):
    named = {}
    for name, tensor in state.items():
        for pattern, replacement in RENAMES:
            name = re.sub(pattern, replacement, name)
        named[name] = tensor
    return named


def twins(backbone, size, **options):
    config = hybrid_resnet(backbone, **{"num_stages": 3, "depth": 2, "image_size": size, "num_classes": 5} | options)
    with torch.device("meta"):
        ours = config.build().eval()
        stride = ours.strides[-1][0]
        theirs = ByHand(backbone, config, -(-size[0] // stride) * -(-size[1] // stride))
    fill(theirs.to_empty(device="cpu"))
    ours.load_state_dict(ours_named(theirs.state_dict()), assign=True)
    return ours, theirs


def assert_every_branch_matters(model, images):
    """Sensitivity check: reducing any block to its shortcut changes the output."""
    expected = model(images)
    for index, block in enumerate(model.blocks):
        original, block.forward = block.forward, (getattr(block, "downsample", None) or Skip()).forward
        moved = error(model(images), expected)
        block.forward = original
        assert moved > 1e-2, f"block {index} does not affect the output ({moved:.1e})"
    assert error(model(images), expected) == 0


@pytest.mark.parametrize(
    ("backbone", "size", "options"),
    [
        ("resnet18", (64, 64), {}),
        ("resnet18", (50, 102), {"num_stages": 4}),
        ("resnet34", (45, 70), {"num_stages": 2, "dim": 64, "num_heads": 4}),
        ("resnet50", (50, 102), {}),
        ("resnet101", (31, 44), {"num_stages": 1}),
    ],
)
@torch.no_grad()
def test_equals_torch_and_torchvision(backbone, size, options):
    ours, theirs = twins(backbone, size, **options)
    images = torch.randn(2, 3, *size)
    assert error(ours(images), theirs(images)) < TOLERANCE


@torch.no_grad()
def test_every_block_is_seen():
    ours, _ = twins("resnet18", (64, 96))
    assert len(ours.blocks) == 6 + 2 == ours.config.depth
    assert_every_branch_matters(ours, torch.randn(2, 3, 64, 96))


@torch.no_grad()
def test_maps_end_with_the_encoders():
    ours, theirs = twins("resnet18", (64, 96))
    images = torch.randn(1, 3, 64, 96)
    features = ours.features(images)
    resnet = create_feature_extractor(theirs.cnn, ["layer1", "layer2"])(images)
    assert error(features.maps[0].values, resnet["layer1"]) < TOLERANCE
    assert error(features.maps[1].values, resnet["layer2"]) < TOLERANCE
    assert torch.equal(features.maps[2].values.flatten(2).transpose(1, 2), features.tokens[:, 1:])
    assert (ours.dims, ours.strides) == ((64, 128, 192), ((4, 4), (8, 8), (16, 16)))


@torch.no_grad()
def test_starts_from_a_trained_resnet():
    resnet = fill(vt.create_model("resnet18", num_classes=7))
    model = hybrid_resnet("resnet18", num_stages=2, depth=1).build().eval()
    model.start_from(resnet)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model.features(images).maps[0].values, resnet.features(images).maps[0].values)
    assert torch.equal(model.stages[1](model.stages[0](model.stem(images))), resnet.features(images).maps[1].values)
    other = vt.create_model("resnet18", num_channels=1)
    with pytest.raises(ValueError, match=r"start_from needs a ResNet .*'imagenet', 3, .*, got .*'imagenet', 1, "):
        model.start_from(other)


@pytest.mark.parametrize(("name", "millions"), [("hybrid_resnet18_tiny", 5.7), ("hybrid_resnet50_small", 23.6)])
def test_sizes(name, millions):
    cost = vt.cost(name)
    assert cost.parameters / 1e6 == pytest.approx(millions, abs=0.05)
    assert cost.num_tokens == 1 + 14 * 14


@torch.no_grad()
def test_other_mixers_and_no_class_token():
    for options in ({"mixer": "conv_projection"}, {"class_token": False}, {"stem": "small"}):
        options = {"depths": (1, 1, 1, 1), **options}
        model = fill(vt.create_model("hybrid_resnet18_tiny", image_size=32, num_classes=5, **options))
        features = model.features(torch.randn(2, 3, 32, 48))
        assert model.heads(features)["class"].shape == (2, 5)
        assert features.num_prefix == options.get("class_token", True)
        assert features.maps[-1].values.shape[2:] == features.grid == ((8, 12) if "stem" in options else (2, 3))


def test_only_the_encoders_attention_is_recorded():
    model = vt.create_model("hybrid_resnet18_tiny", image_size=64).eval()
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(1, 3, 64, 64))
    assert list(trace) == [f"blocks.{index}" for index in range(6, 12)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hybrid_resnet("resnet19", num_stages=3, depth=2), "backbone must be one of resnet18.* got 'resnet19'"),
        (lambda: hybrid_resnet("resnet18", num_stages=5, depth=2), "num_stages must be between 1 and 4, got 5"),
        (lambda: VARIANTS["hybrid_resnet18_tiny"].override(depths=(6,)), r"depths must have 2 to 5 numbers.*\(6,\)"),
        (lambda: VARIANTS["hybrid_resnet18_tiny"].override(num_heads=5), "multiple of num_heads"),
    ],
)
def test_invalid_options_raise_one_line_errors(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
