"""Google's .npz files equal what timm's own loader makes of them, in every layout that it knows."""

import io
import zipfile

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import _load_weights

import vitreous as vt
from tests.parity import assert_every_block_matters, error, fill

DIM, HEADS, DEPTH, CLASSES = 48, 3, 3, 7


def ours(**options):
    shape = {"dim": DIM, "num_heads": HEADS, "depth": DEPTH, "image_size": 32, "num_classes": CLASSES}
    return fill(vt.create_model("vit_tiny_16", **shape | options), seed=3)


def theirs(**options):
    shape = {"embed_dim": DIM, "num_heads": HEADS, "depth": DEPTH, "img_size": 32, "num_classes": CLASSES}
    return fill(timm.create_model("vit_tiny_patch16_224", **shape | options), seed=4)


def arrays(*, prefix="", big_vision=False, stacked=False, pre_logits=False):
    """Random weights under Google's names and in JAX's shapes."""
    draw = np.random.default_rng(0)

    def layer(name, *shape, bias=None, kind="kernel"):
        scale = np.prod(shape[:-1]) ** -0.5 if kind == "kernel" else 0.2
        weight = draw.normal(1.0 if kind == "scale" else 0.0, scale, shape)
        found[f"{prefix}{name}/{kind}"] = weight.astype(np.float32)
        found[f"{prefix}{name}/bias"] = draw.normal(0, 0.5, bias or shape[-1:]).astype(np.float32)

    found = {f"{prefix}cls": draw.normal(0, 0.5, (1, 1, DIM)).astype(np.float32)}
    where = "pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"
    found[f"{prefix}{where}"] = draw.normal(0, 0.5, (1, 5, DIM)).astype(np.float32)
    layer("embedding", 16, 16, 3, DIM)
    layer("Transformer/encoder_norm", DIM, kind="scale")
    layer("head", DIM, CLASSES)
    attention, mlp, norm = (0, 0, 1) if big_vision else (1, 3, 2)
    lead = (DEPTH,) if stacked else ()
    for block in ["encoderblock"] if stacked else [f"encoderblock_{i}" for i in range(DEPTH)]:
        at, width = f"Transformer/{block}", DIM // HEADS
        for part in ("query", "key", "value"):
            layer(
                f"{at}/MultiHeadDotProductAttention_{attention}/{part}",
                *lead,
                DIM,
                HEADS,
                width,
                bias=(*lead, HEADS, width),
            )
        layer(f"{at}/MultiHeadDotProductAttention_{attention}/out", *lead, HEADS, width, DIM, bias=(*lead, DIM))
        layer(f"{at}/LayerNorm_0", *lead, DIM, kind="scale", bias=(*lead, DIM))
        layer(f"{at}/LayerNorm_{norm}", *lead, DIM, kind="scale", bias=(*lead, DIM))
        layer(f"{at}/MlpBlock_{mlp}/Dense_0", *lead, DIM, 4 * DIM, bias=(*lead, 4 * DIM))
        layer(f"{at}/MlpBlock_{mlp}/Dense_1", *lead, 4 * DIM, DIM, bias=(*lead, DIM))
    if pre_logits:
        layer("pre_logits", DIM, DIM)
    return found


LAYOUTS = {
    "augreg": {},
    "with the optimizer": {"prefix": "opt/target/"},
    "big_vision": {"prefix": "params/", "big_vision": True},
    "big_vision, an image's side": {"prefix": "params/img/", "big_vision": True},
    "big_vision, blocks in one array": {"prefix": "params/", "big_vision": True, "stacked": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_equals_timms_loader(layout, tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, **arrays(**LAYOUTS[layout]))
    model, other, images = ours(), theirs(), torch.randn(2, 3, 32, 32)
    _load_weights(other, str(path))
    report = vt.load_weights(model, path)
    assert (report.source, report.adapted, report.fresh, report.unused) == ("Google's JAX", [], [], [])
    assert error(model(images), other(images)) < 1e-5
    assert_every_block_matters(model, lambda: model(images))


@torch.no_grad()
def test_by_the_name_of_its_model(tmp_path):
    np.savez_compressed(tmp_path / "weights.npz", **arrays())
    model = vt.load(tmp_path / "weights.npz", model=ours().config.override(num_classes=1000)).eval()
    other, images = theirs(), torch.randn(1, 3, 32, 32)
    _load_weights(other, str(tmp_path / "weights.npz"))
    assert model.config.num_classes == CLASSES
    assert error(model(images), other(images)) < 1e-5


@torch.no_grad()
def test_a_hidden_layer_before_the_head_leaves_the_head_out(tmp_path):
    path, images = tmp_path / "weights.npz", torch.randn(1, 3, 32, 32)
    np.savez(path, **arrays(pre_logits=True))
    model, other = vt.load(path, model=ours().config).eval(), theirs(num_classes=0)
    _load_weights(other, str(path))
    assert model.config.num_classes == 0
    assert error(model(images), other(images)) < 1e-5
    report = vt.load_weights(ours(), path)
    assert report.fresh == ["head.weight", "head.bias"]
    assert "left out: a hidden layer (pre_logits)" in str(report)


@torch.no_grad()
def test_the_memory_of_an_optimizer_is_left_out(tmp_path):
    weights = arrays(prefix="opt/target/")
    memory = {name.replace("target", "state/param_states") + "/momentum": array for name, array in weights.items()}
    np.savez(tmp_path / "weights.npz", **weights, **memory, **{"opt/state/step": np.int32(7)})
    report = vt.load_weights(ours(), tmp_path / "weights.npz")
    assert report.num_loaded == len(ours().state_dict())
    assert len(report.unused) == len(memory) + 1


@torch.no_grad()
def test_positions_of_another_size_and_halves(tmp_path):
    """JAX's bfloat16 is two bytes without a meaning to NumPy."""
    halves = {name: torch.from_numpy(a).bfloat16().view(torch.int16).numpy().view("V2") for name, a in arrays().items()}
    np.savez(tmp_path / "weights.npz", **halves)
    model = ours(image_size=64)
    assert "made for a grid of 2×2, resampled to 4×4" in str(vt.load_weights(model, tmp_path / "weights.npz"))
    expected = torch.from_numpy(arrays()["cls"]).bfloat16().float()
    assert torch.equal(model.class_token, expected)


def header_that_claims(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def archive(path, content, name="cls.npy", method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr(name, content)


def with_objects(path):
    np.savez(path, cls=np.array([{"a": 1}], dtype=object))


HOSTILE = {
    "a huge shape": (lambda p: archive(p, header_that_claims((10**7, 10**7)) + bytes(64)), "claims .* of float32 but"),
    "zeros that unpack": (lambda p: archive(p, header_that_claims((10**8,)) + bytes(4 * 10**8)), "would unpack"),
    "objects": (with_objects, "claims .* values of object"),
    "text": (lambda p: np.savez(p, cls=np.array(["a", "b"])), "must be numbers, got values of type <U1"),
    "no array": (lambda p: archive(p, b"nothing of that kind"), "damaged or not a numeric array"),
    "cut off": (lambda p: (np.savez(p, **arrays()), p.write_bytes(p.read_bytes()[:-500])), "damaged"),
    "a negative shape": (lambda p: archive(p, header_that_claims((-1, 4))), "not a numeric array|does not fit"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_one_line(kind, tmp_path):
    write, message = HOSTILE[kind]
    write(tmp_path / "weights.npz")
    with pytest.raises(ValueError, match=message) as caught:
        vt.load_weights(ours(), tmp_path / "weights.npz")
    assert "\n" not in str(caught.value)
