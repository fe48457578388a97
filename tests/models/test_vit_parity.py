"""ViT, DeiT and DINOv2 equal timm, transformers and torchvision with the same weights."""

import pytest
import timm
import torch
import torchvision
import transformers

import vitreous as vt
from tests.family import others_slowly
from tests.parity import (
    TOLERANCE,
    Logits,
    assert_same_macs,
    assert_same_parameters,
    error,
    fill,
    same,
)
from vitreous.layers import position
from vitreous.models.vit import SIZES

TINY_FIRST = ["tiny", *(pytest.param(size, marks=pytest.mark.slow) for size in ("small", "base"))]


@pytest.mark.parametrize("size", TINY_FIRST)
def test_timm(size):
    theirs = fill(timm.create_model(f"vit_{size}_patch16_224"))
    same(vt.create_model(f"vit_{size}_16"), theirs, torch.randn(1, 3, 224, 224))


def test_timm_patch_32_and_8():
    for patch, size in ((32, 224), (8, 48)):
        theirs = fill(timm.create_model(f"vit_base_patch{patch}_224", img_size=size, depth=2))
        ours = vt.create_model(f"vit_base_{patch}", image_size=size, depth=2)
        same(ours, theirs, torch.randn(1, 3, size, size))


def test_timm_non_square_built_so():
    theirs = fill(timm.create_model("vit_tiny_patch16_224", img_size=(96, 160)))
    same(vt.create_model("vit_tiny_16", image_size=(96, 160)), theirs, torch.randn(2, 3, 96, 160))


@pytest.mark.parametrize("size", [(160, 288), (288, 112), (100, 131)])
def test_timm_positions_resized_while_running(size):
    """A size that the model was not built for, and that is not a multiple of the patch."""
    theirs = fill(timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, dynamic_img_pad=True))
    same(vt.create_model("vit_tiny_16"), theirs, torch.randn(1, 3, *size), every_block=False)


def test_timm_positions_resized_while_loading():
    theirs = fill(timm.create_model("vit_tiny_patch16_224"))
    other = timm.create_model("vit_tiny_patch16_224", img_size=(128, 320)).eval()
    resized = dict(theirs.state_dict())
    resized["pos_embed"] = timm.layers.resample_abs_pos_embed(resized["pos_embed"], (8, 20), (14, 14))
    other.load_state_dict(resized)
    ours = vt.create_model("vit_tiny_16", image_size=(128, 320)).eval()
    report = vt.load_weights(ours, theirs.state_dict())
    assert "14×14, resampled to 8×20" in str(report)
    images = torch.randn(1, 3, 128, 320)
    with torch.no_grad():
        assert error(ours(images), other(images)) < TOLERANCE


@pytest.mark.parametrize(("pool", "theirs_pool"), [("mean", "avg"), ("max", "max")])
def test_timm_pooling_with_norm_after_it(pool, theirs_pool):
    theirs = fill(timm.create_model("vit_tiny_patch16_224", global_pool=theirs_pool))
    ours = vt.create_model("vit_tiny_16", pool=pool, final_norm="pooled")
    same(ours, theirs, torch.randn(2, 3, 224, 224))


def test_timm_mean_pooling_with_norm_before_it_and_no_class_token():
    theirs = fill(
        timm.create_model(
            "vit_tiny_patch16_224", global_pool="avg", fc_norm=False, class_token=False, no_embed_class=True
        )
    )
    same(vt.create_model("vit_tiny_16", pool="mean", class_token=False), theirs, torch.randn(2, 3, 224, 224))


def test_timm_tanh_gelu_and_no_qkv_bias():
    theirs = fill(timm.create_model("vit_tiny_patch16_224", qkv_bias=False, act_layer="gelu_tanh", depth=4))
    same(vt.create_model("vit_tiny_16", qkv_bias=False, mlp="gelu_tanh", depth=4), theirs, torch.randn(1, 3, 224, 224))


@pytest.mark.parametrize("size", TINY_FIRST)
def test_timm_deit(size):
    theirs = fill(timm.create_model(f"deit_{size}_patch16_224"))
    same(vt.create_model(f"deit_{size}_16"), theirs, torch.randn(1, 3, 224, 224), every_block=size == "tiny")


@pytest.mark.parametrize("size", TINY_FIRST)
def test_timm_deit_distilled_averages_both_heads(size):
    theirs = fill(timm.create_model(f"deit_{size}_distilled_patch16_224"))
    ours = vt.create_model(f"deit_{size}_distilled_16")
    images = torch.randn(2, 3, 224, 224)
    same(ours, theirs, images, every_block=size == "tiny")
    theirs.set_distilled_training(True)
    theirs.train()
    with torch.no_grad():
        expected = dict(zip(("class", "distill"), theirs(images), strict=True))
        actual = ours.heads(ours.features(images))
    assert {name: error(actual[name], expected[name]) < TOLERANCE for name in expected} == {
        "class": True,
        "distill": True,
    }


@pytest.mark.parametrize("registers", ["", "reg4_"])
def test_timm_dinov2(registers):
    theirs = fill(timm.create_model(f"vit_small_patch14_{registers}dinov2", img_size=(98, 140)))
    ours = vt.create_model(f"dinov2_small_{registers}14", image_size=(98, 140))
    report = same(ours, theirs, torch.randn(2, 3, 98, 140))
    assert not report.fresh


def test_timm_dinov2_giant_has_a_gated_mlp():
    theirs = fill(timm.create_model("vit_giant_patch14_reg4_dinov2", img_size=56, depth=1))
    ours = vt.create_model("dinov2_giant_reg4_14", image_size=56, depth=1)
    same(ours, theirs, torch.randn(1, 3, 56, 56))


def hf_shape(size):
    config = SIZES[size]
    return {
        "hidden_size": config.dim,
        "num_attention_heads": config.num_heads,
        "intermediate_size": 4 * config.dim,
        "num_labels": 1000,
    }


@pytest.mark.parametrize("size", TINY_FIRST)
def test_transformers_vit(size):
    config = transformers.ViTConfig(**hf_shape(size))
    theirs = Logits(fill(transformers.ViTForImageClassification(config)))
    ours = vt.create_model(f"vit_{size}_16", norm_eps=config.layer_norm_eps)
    same(ours, theirs, torch.randn(1, 3, 224, 224), every_block=size == "tiny")


def test_transformers_vit_positions_resized_to_non_square():
    """Transformers interpolates without antialiasing; with the same setting the results are equal."""
    config = transformers.ViTConfig(**hf_shape("tiny"))
    theirs = Logits(fill(transformers.ViTForImageClassification(config)), interpolate_pos_encoding=True)
    ours = vt.create_model("vit_tiny_16", norm_eps=config.layer_norm_eps, image_size=(160, 288)).eval()
    state = theirs.state_dict()
    table = state["vit.embeddings.position_embeddings"]
    state["vit.embeddings.position_embeddings"] = position.resample(table, (14, 14), (10, 18), 1, antialias=False)
    vt.load_weights(ours, state)
    images = torch.randn(1, 3, 160, 288)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


@pytest.mark.parametrize("size", TINY_FIRST)
def test_transformers_deit_distilled(size):
    config = transformers.DeiTConfig(**hf_shape(size))
    theirs = Logits(fill(transformers.DeiTForImageClassificationWithTeacher(config)))
    ours = vt.create_model(f"deit_{size}_distilled_16", norm_eps=config.layer_norm_eps)
    same(ours, theirs, torch.randn(1, 3, 224, 224), every_block=size == "tiny")


@pytest.mark.parametrize("registers", ["", "reg4_"])
@pytest.mark.parametrize("gated", [False, True])
def test_transformers_dinov2(registers, gated):
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    options = {"num_register_tokens": 4} if registers else {}
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=384, num_attention_heads=6, patch_size=14, image_size=98, use_swiglu_ffn=gated, **options
    )
    theirs = Logits(fill(getattr(transformers, f"{kind}Model")(config)), field="last_hidden_state")
    shape = {"mlp": "swiglu", "mlp_ratio": 1024 / 384} if gated else {}
    ours = vt.create_model(f"dinov2_small_{registers}14", image_size=98, norm_eps=config.layer_norm_eps, **shape)
    images = torch.randn(1, 3, 98, 98)
    same(ours, theirs, images, run=lambda images: ours.features(images).tokens)


def test_transformers_files_carry_the_names_of_version_4(tmp_path):
    """Files written by save_pretrained have the hub's names, which differ from those in memory."""
    config = transformers.ViTConfig(**hf_shape("tiny"), num_hidden_layers=2)
    theirs = fill(transformers.ViTForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = vt.create_model("vit_tiny_16", depth=2, norm_eps=config.layer_norm_eps).eval()
    report = vt.load_weights(ours, tmp_path / "model.safetensors")
    assert report.source == "transformers"
    assert report.num_loaded == len(ours.state_dict())
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert error(ours(images), theirs(images).logits) < TOLERANCE


def as_version_4(name):
    for new, old in (
        ("vit.layers", "vit.encoder.layer"),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    ):
        name = name.replace(new, old)
    return name


def test_transformers_names_of_version_4():
    config = transformers.ViTConfig(**hf_shape("tiny"), num_hidden_layers=2)
    theirs = fill(transformers.ViTForImageClassification(config))
    state = {as_version_4(name): tensor for name, tensor in theirs.state_dict().items()}
    assert "vit.encoder.layer.1.attention.attention.query.bias" in state
    ours = vt.create_model("vit_tiny_16", depth=2, norm_eps=config.layer_norm_eps).eval()
    vt.load_weights(ours, state | {"vit.pooler.dense.weight": torch.zeros(192, 192)})
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert error(ours(images), theirs(images).logits) < TOLERANCE


@pytest.mark.parametrize("size", TINY_FIRST)
def test_torchvision(size):
    config = SIZES[size]
    theirs = fill(
        torchvision.models.VisionTransformer(224, 16, config.depth, config.num_heads, config.dim, 4 * config.dim)
    )
    same(vt.create_model(f"vit_{size}_16"), theirs, torch.randn(1, 3, 224, 224), every_block=size == "tiny")


def test_original_dinov2_names():
    """Original names: registers and the gated MLP differ from timm's, and there is a mask token."""
    theirs = fill(timm.create_model("vit_giant_patch14_reg4_dinov2", img_size=56, depth=1))
    state = {
        name.replace("reg_token", "register_tokens").replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): tensor
        for name, tensor in theirs.state_dict().items()
    }
    state["pos_embed"] = torch.cat([torch.zeros(1, 1, 1536), state["pos_embed"]], dim=1)
    ours = vt.create_model("dinov2_giant_reg4_14", image_size=56, depth=1).eval()
    report = vt.load_weights(ours, state | {"mask_token": torch.zeros(1, 1536)})
    assert report.unused == ["mask_token"]
    images = torch.randn(1, 3, 56, 56)
    with torch.no_grad():
        assert error(ours(images), theirs(images)) < TOLERANCE


TIMM_NAMES = {
    **{
        f"vit_{size}_{patch}": f"vit_{size}_patch{patch}_224"
        for size, patch in [
            ("tiny", 16),
            ("small", 8),
            ("small", 16),
            ("small", 32),
            ("base", 8),
            ("base", 16),
            ("base", 32),
            ("large", 14),
            ("large", 16),
            ("large", 32),
            ("huge", 14),
            ("giant", 14),
            ("gigantic", 14),
        ]
    },
    **{f"deit_{size}_16": f"deit_{size}_patch16_224" for size in ("tiny", "small", "base")},
    **{f"deit_{size}_distilled_16": f"deit_{size}_distilled_patch16_224" for size in ("tiny", "small", "base")},
    **{f"dinov2_{size}_14": f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large", "giant")},
}


@pytest.mark.parametrize("name", others_slowly(TIMM_NAMES))
def test_names_shapes_and_counts_equal_timm_on_the_meta_device(name):
    assert_same_parameters(name, lambda classes: timm.create_model(TIMM_NAMES[name], num_classes=classes))


@pytest.mark.parametrize("name", others_slowly(TIMM_NAMES))
def test_macs_equal_timm_on_the_meta_device(name):
    assert_same_macs(name, lambda classes: timm.create_model(TIMM_NAMES[name], num_classes=classes))


@pytest.mark.parametrize(("name", "theirs"), [("vit_large_16", "vit_l_16"), ("vit_huge_14", "vit_h_14")])
def test_large_ones_equal_torchvision_on_the_meta_device(name, theirs):
    with torch.device("meta"):
        model = torchvision.models.get_model(theirs)
        ours = vt.create_model(name)
        assert vt.load_weights(ours, model.state_dict()).num_loaded == len(ours.state_dict())
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in model.parameters())
