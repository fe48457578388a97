"""CvT equals transformers with the same weights."""

import re

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers.activations import QuickGELUActivation

import vitreous as vt
from tests.family import others_slowly
from tests.parity import TOLERANCE, Logits, assert_same_macs, assert_same_parameters, error, fill, same
from vitreous.models.cvt import VARIANTS

SHALLOW = (1, 2, 3)


def hugging_face(name, num_classes=1000, **options):
    row = VARIANTS[name]
    shape = {"depth": row.depths, "embed_dim": row.dims, "num_heads": row.num_heads, "num_labels": num_classes}
    return Logits(transformers.CvtForImageClassification(transformers.CvtConfig(**shape | options)))


def filled(*args, **options):
    """Create without random initialization, which would be overwritten."""
    with torch.device("meta"):
        theirs = hugging_face(*args, **options)
    return fill(theirs.to_empty(device="cpu"))


def small_pair(**options):
    """As shallow as transformers allows, which indexes drop-path rates by stage."""
    theirs = filled("cvt_13", 5, depth=SHALLOW, **options)
    return vt.create_model("cvt_13", num_classes=5, depths=SHALLOW), theirs


def test_native_size_and_another():
    """The second size has 25×37, 13×19 and 7×10 cells, so that keys and values have odd sides."""
    ours, theirs = vt.create_model("cvt_13"), filled("cvt_13")
    report = same(ours, theirs, torch.randn(1, 3, 224, 224), every_block=False)
    assert report.source == "transformers"
    assert not report.unused
    same(ours, theirs, torch.randn(1, 3, 100, 148))


def test_odd_sizes_are_padded():
    ours, theirs = small_pair()
    images = torch.randn(2, 3, 57, 78)
    padded = torch.nn.functional.pad(images, (0, 2, 0, 3))
    vt.load_weights(ours.eval(), theirs.state_dict())
    with torch.no_grad():
        assert error(ours(images), theirs(padded)) < TOLERANCE
        assert theirs.model(images, output_hidden_states=True).hidden_states[0].shape[2:] == (14, 19)
        assert ours.features(images).maps[0].values.shape[2:] == (15, 20)


def test_mean_pooling_without_a_class_token():
    _, theirs = small_pair(cls_token=(False, False, False))
    theirs.options = {"output_hidden_states": True}  # otherwise transformers fails on the missing token
    ours = vt.create_model("cvt_13", num_classes=5, depths=SHALLOW, class_token=False)
    same(ours, theirs, torch.randn(2, 3, 64, 96))


def test_maps_equal_transformers():
    ours, theirs = small_pair()
    vt.load_weights(ours.eval(), theirs.state_dict())
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        features = ours.features(images)
        *finer, last = theirs.model(images, output_hidden_states=True).hidden_states
        last = theirs.model.layernorm(last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    for feature_map, expected in zip(features.maps, (*finer, last), strict=True):
        assert error(feature_map.values, expected) < TOLERANCE
    assert (features.grid, features.num_prefix) == ((4, 6), 1)


def original_names(state):
    """Convert to the names of the original repository, following transformers' conversion script."""
    renames = [
        (r"cvt\.encoder\.stages\.(\d+)\.", r"stage\1."),
        (r"embedding\.convolution_embeddings\.projection", "patch_embed.proj"),
        (r"embedding\.convolution_embeddings\.normalization", "patch_embed.norm"),
        (r"\.layers\.", ".blocks."),
        (r"attention\.attention\.convolution_projection_(.)\w+\.convolution_projection", r"attn.conv_proj_\1"),
        (r"\.convolution\.", ".conv."),
        (r"\.normalization\.", ".bn."),
        (r"attention\.attention\.projection_(.)\w+", r"attn.proj_\1"),
        (r"attention\.output\.dense", "attn.proj"),
        (r"intermediate\.dense", "mlp.fc1"),
        (r"output\.dense", "mlp.fc2"),
        (r"layernorm_before", "norm1"),
        (r"layernorm_after", "norm2"),
        (r"^layernorm", "norm"),
        (r"^classifier", "head"),
    ]
    named = {}
    for name, tensor in state.items():
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        named[name] = tensor
    return named


def test_original_names():
    ours, theirs = small_pair()
    state = original_names(theirs.state_dict())
    assert {"stage2.cls_token", "stage0.blocks.0.attn.conv_proj_q.bn.running_mean", "head.bias"} <= state.keys()
    report = vt.load_weights(ours.eval(), state)
    assert (report.source, report.num_loaded) == ("microsoft/CvT", len(state))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


def test_the_activation_that_the_authors_trained_with():
    _, theirs = small_pair()
    for module in theirs.modules():
        if hasattr(module, "activation"):
            module.activation = QuickGELUActivation()
    ours = vt.create_model("cvt_13", num_classes=5, depths=SHALLOW, mlp="quick_gelu")
    images = torch.randn(2, 3, 64, 64)
    same(ours, theirs, images)
    exact = vt.create_model("cvt_13", num_classes=5, depths=SHALLOW).eval()
    vt.load_weights(exact, theirs.state_dict())
    with torch.no_grad():
        assert error(exact(images), theirs(images)) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_equal_transformers(name):
    assert_same_parameters(name, lambda classes: hugging_face(name, classes))


@pytest.mark.parametrize("name", others_slowly(VARIANTS))
def test_macs_equal_transformers(name):
    assert_same_macs(name, lambda classes: hugging_face(name, classes))


def test_torch_counts_fused_attention_and_explicit_products_alike():
    """Vitreous uses fused attention and transformers explicit products; both are counted."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        vt.create_model("cvt_13", depths=SHALLOW).eval()(torch.empty(1, 3, 224, 224))
    cost = vt.cost("cvt_13", depths=SHALLOW)
    assert counter.get_total_flops() == 2 * cost.macs
    assert cost.quadratic_macs > 0


def test_published_sizes():
    """From the paper's table: 20, 32 and 277 million parameters."""
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in config.build().parameters()) for config in VARIANTS.values()]
    assert [round(size / 1e6) for size in sizes] == [20, 32, 277]


def test_parameters_without_gradient_from_the_classifier():
    """The class token bypasses the convolutions: those for queries in the last block affect cells only."""
    model = fill(vt.create_model("cvt_13", num_classes=5, depths=(1, 1, 1), image_size=64))

    def silent(output):
        model.zero_grad()
        output.square().sum().backward()
        return {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}

    images = torch.randn(2, 3, 64, 64)
    queries = {f"stages.2.blocks.0.mixer.q.{part}" for part in ("conv.weight", "norm.weight", "norm.bias")}
    assert silent(model(images)) == queries
    assert silent(model.features(images).maps[-1].values) == {"head.weight", "head.bias"}


def test_drop_path_grows_within_the_last_stage():
    blocks = vt.create_model("cvt_13", drop_path_rate=0.9).blocks
    rates = [0.0] * 3 + [0.1 * index for index in range(10)]
    assert [block.drop_path.rate for block in blocks] == pytest.approx(rates)


def test_another_mixer():
    model = vt.create_model("cvt_13", mixer="attention", depths=(1, 1, 1), image_size=64, num_classes=5)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (1, 2)}, r"depths must have 3 numbers, one per stage; got \(1, 2\)"),
        ({"num_heads": (1, 5, 6)}, "multiple of num_heads, got dim=192, num_heads=5"),
        ({"mixer": "conv_projecton"}, "did you mean 'conv_projection'"),
        ({"mlp": "gelu_quick"}, "mlp must be one of gelu, quick_gelu"),
    ],
)
def test_invalid_options_raise_one_line_errors(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        vt.create_model("cvt_13", **options)
    assert "\n" not in str(caught.value)
