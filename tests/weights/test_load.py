"""Files of ours and of others: what fits is loaded and reported, what does not is one clear error."""

import json
import pickle

import pytest
import safetensors.torch
import torch

import vitreous as vt
from tests.parity import error, fill
from vitreous.layers.position import resample
from vitreous.weights import files


def tiny(**overrides):
    return fill(vt.create_model("vit_tiny_16", **({"depth": 2, "image_size": 64, "num_classes": 5} | overrides)))


@pytest.fixture
def saved(tmp_path):
    model = tiny()
    model.name_classes("abcde")
    path = tmp_path / "model.safetensors"
    vt.save(model, path)
    return model, path


def test_a_report_a_person_can_read():
    model = tiny(image_size=96, num_classes=3, num_channels=1)
    report = vt.load_weights(model, tiny().state_dict())
    assert str(report).splitlines() == [
        "loaded 30 tensors, named as in Vitreous",
        "  adapted: head: 5 classes in the file, 3 in the model, re-initialized",
        "  adapted: stem.proj.weight: 3 channels in the file, 1 in the model, summed over channels",
        "  adapted: position.table: made for a grid of 4×4, resampled to 6×6",
        "  newly initialized: head.weight",
        "  newly initialized: head.bias",
    ]


def test_only_the_head_stays_fresh_when_classes_differ(saved):
    source, path = saved
    model = tiny(num_classes=9)
    head = model.head.weight.clone()
    report = vt.load_weights(model, path)
    assert report.fresh == ["head.weight", "head.bias"]
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.blocks[1].mlp.fc2.weight, source.blocks[1].mlp.fc2.weight)
    assert model.spec.labels.names == ()


def test_strict_head_refuses_another_number_of_classes(saved):
    with pytest.raises(ValueError, match="the weights have 5 classes, the model has 9 classes"):
        vt.load_weights(tiny(num_classes=9), saved[1], head="strict")


def test_features_only_leaves_the_classifier_out(saved):
    model = tiny(num_classes=0)
    report = vt.load_weights(model, saved[1])
    assert report.unused == ["head.weight", "head.bias"]
    assert not report.fresh


@pytest.mark.parametrize("num_channels", [1, 6, 9])
def test_rgb_filters_answer_alike_on_gray_images(num_channels):
    """A gray image looks the same to RGB filters and to their adaptation, where each color comes equally often."""
    source, model = tiny(), tiny(num_channels=num_channels)
    vt.load_weights(model, source.state_dict())
    gray = torch.randn(2, 1, 64, 64)
    expected = source.stem(gray.expand(-1, 3, -1, -1))
    assert error(model.stem(gray.expand(-1, num_channels, -1, -1)), expected) < 1e-5


def test_filters_for_a_fourth_channel():
    source, model = tiny(), tiny(num_channels=4)
    vt.load_weights(model, source.state_dict())
    weight, rgb = model.stem.proj.weight, source.stem.proj.weight
    assert torch.allclose(weight, rgb[:, [0, 1, 2, 0]] * 0.75)


def timm_like(model):
    """The state of one of our models under timm's names."""
    names = {"class_token": "cls_token", "position.table": "pos_embed", "stem": "patch_embed"}
    names |= {"mixer": "attn", "registers": "reg_token"}
    state = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[name] = tensor
    return state


def test_foreign_tables_are_square_even_when_another_grid_has_as_many_cells():
    source, model = tiny(), tiny(image_size=(32, 128))
    report = vt.load_weights(model, timm_like(source))
    assert "made for a grid of 4×4, resampled to 2×8" in str(report)
    assert torch.equal(model.position.table, resample(source.position.table, (4, 4), (2, 8), 1))


def test_a_table_of_the_models_own_shape_is_taken_as_it_is():
    """3×5 cells and a class token are as many rows as 4×4 cells without a prefix."""
    source, model = tiny(image_size=(48, 80)), tiny(image_size=(48, 80))
    vt.load_weights(model, timm_like(source))
    assert torch.equal(model.position.table, source.position.table)


def test_a_table_without_prefix_rows_gets_zeros_there():
    source, model = tiny(class_position=False), tiny(image_size=(48, 96))
    vt.load_weights(model, timm_like(source))
    assert model.position.table[0, 0].abs().max() == 0
    assert torch.equal(model.position.table[:, 1:], resample(source.position.table, (4, 4), (3, 6), 0))


def pooled_names(state):
    return {f"fc_{key}" if key.startswith("norm.") else key: tensor for key, tensor in state.items()}


BAD_STATES = {
    "two copies": (lambda s: s | {f"backbone.{k}": 0 * v for k, v in s.items()}, "unknown .*backbone"),
    "a norm too many": (lambda s: s | {"fc_norm.weight": torch.zeros(192)}, "unknown .*fc_norm.weight"),
    "norm after pooling": (pooled_names, "missing .*norm.weight.*unknown .*fc_norm.weight"),
    "half a head": (lambda s: {k: v for k, v in s.items() if k != "head.bias"}, "1 missing .*head.bias"),
    "whole numbers": (lambda s: {k: (v * 100).to(torch.int8) for k, v in s.items()}, "must contain floating-point"),
    "scalar head": (lambda s: s | {"head.bias": torch.tensor(1.0)}, "with a different shape"),
    "no channels": (lambda s: s | {"patch_embed.proj.weight": torch.zeros(192, 0, 16, 16)}, "with a different shape"),
    "flat table": (lambda s: s | {"pos_embed": torch.zeros(17)}, "with a different shape"),
    "two tables": (lambda s: s | {"pos_embed": torch.zeros(2, 16, 192)}, "with a different shape"),
    "LayerScale": (lambda s: s | {"blocks.0.ls1.gamma": torch.ones(192)}, "unknown .*blocks.0.ls1.gamma"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_STATES)
def test_a_foreign_state_that_does_not_fit(kind):
    spoil, message = BAD_STATES[kind]
    with pytest.raises(ValueError, match=message) as caught:
        vt.load_weights(tiny(), spoil(timm_like(tiny())))
    assert "\n" not in str(caught.value)


def test_one_head_of_two_is_an_error():
    state = timm_like(fill(vt.create_model("deit_tiny_distilled_16", depth=2, image_size=64, num_classes=5)))
    state = {key.replace("distill_token", "dist_token"): v for key, v in state.items() if "distill_head" not in key}
    model = vt.create_model("deit_tiny_distilled_16", depth=2, image_size=64, num_classes=5)
    with pytest.raises(ValueError, match=r"2 missing \(distill_head.weight, distill_head.bias\)"):
        vt.load_weights(model, state)


def test_a_model_derived_from_ours_keeps_the_key_maps():
    class Mine(type(tiny())):
        pass

    source = tiny()
    model = Mine(source.config)
    assert vt.load_weights(model, timm_like(source)).num_loaded == len(model.state_dict())


def test_a_foreign_file_by_the_name_of_its_model(tmp_path):
    source = fill(vt.create_model("vit_tiny_16", num_classes=5))
    safetensors.torch.save_file(timm_like(source), tmp_path / "foreign.safetensors")
    model = vt.load(tmp_path / "foreign.safetensors", model="vit_tiny_16").eval()
    images = torch.randn(1, 3, 224, 224)
    assert torch.equal(model(images), source(images))


def test_half_precision_files_compute_in_float32(tmp_path):
    model = tiny().bfloat16()
    vt.save(model, tmp_path / "half.safetensors")
    for overrides in ({}, {"image_size": 96}):
        assert {p.dtype for p in vt.load(tmp_path / "half.safetensors", **overrides).parameters()} == {torch.float32}


def test_a_loaded_model_does_not_hang_on_its_file(saved):
    source, path = saved
    model = vt.load(path)
    content = bytearray(path.read_bytes())
    content[-1000:] = bytes(1000)
    with open(path, "r+b") as file:
        file.write(content)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), source.parameters(), strict=True))


def test_our_files_know_their_grid(tmp_path):
    """2×8 cells into 4×4: equal counts, and still resampled."""
    source = tiny(image_size=(32, 128))
    vt.save(source, tmp_path / "wide.safetensors")
    model = tiny(image_size=64)
    report = vt.load_weights(model, tmp_path / "wide.safetensors")
    assert "made for a grid of 2×8, resampled to 4×4" in str(report)
    assert torch.equal(model.position.table, resample(source.position.table, (2, 8), (4, 4), 1))


@pytest.mark.parametrize("position", ["learned", "learned_2d", "relative"])
def test_every_learned_position_is_resampled(tmp_path, position):
    source = tiny(image_size=(32, 128), position=position)
    vt.save(source, tmp_path / "model.safetensors")
    model = vt.load(tmp_path / "model.safetensors", image_size=(96, 48)).eval()
    images = torch.randn(1, 3, 96, 48)
    assert error(model(images), source(images)) < 1e-4  # the source resamples while running


def test_load_with_overrides_keeps_the_rest(saved):
    source, path = saved
    model = vt.load(path, num_classes=2, image_size=96)
    assert model.spec.preprocess.image_size == (96, 96)
    assert not model.spec.labels.names
    assert torch.equal(model.blocks[0].norm1.bias, source.blocks[0].norm1.bias)


def test_load_keeps_training_possible(saved):
    model = vt.load(saved[1])
    model(torch.randn(1, 3, 64, 64)).sum().backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


def test_torch_checkpoints_and_their_wrappings(tmp_path):
    source = tiny()
    for wrap in (lambda s: s, lambda s: {"model": s}, lambda s: {"state_dict": s, "epoch": 3}):
        torch.save(wrap(source.state_dict()), tmp_path / "model.pth")
        model = tiny()
        fill(model, seed=1)
        vt.load_weights(model, tmp_path / "model.pth")
        assert torch.equal(model.head.weight, source.head.weight)


class Bomb:
    """Would write a file if anybody unpickled it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_no_pickle_is_ever_executed(tmp_path):
    trap = tmp_path / "executed"
    torch.save({"model": Bomb(trap)}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps({"model": Bomb(trap), "padding": "x" * 32}, protocol=2))
    (tmp_path / "c.pt").write_bytes(pickle.dumps({"model": Bomb(trap), "padding": "x" * 32}))
    for name in "abc":
        with pytest.raises(
            ValueError,
            match="and Vitreous never executes code from a file",
        ):
            vt.load_weights(tiny(), tmp_path / f"{name}.pt")
    assert not trap.exists()


def rewrite(path, **metadata):
    """The same file with another description."""
    with safetensors.safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        safetensors.torch.save_file(tensors, path, {**file.metadata(), **metadata})


def changed_config(path, **changes):
    with safetensors.safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    rewrite(path, config=json.dumps(config | changes))


def truncate(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


BAD_FILES = {
    "cut off": (lambda p: truncate(p, 1000), "damaged or truncated"),
    "cut off in the tensors": (lambda p: truncate(p, p.stat().st_size - 100), "damaged or truncated"),
    "empty": (lambda p: truncate(p, 0), r"empty or truncated \(0 bytes\)"),
    "header broken": (lambda p: flip(p, 8 + 5), "damaged or truncated|does not fit|invalid metadata"),
    "header length absurd": (lambda p: flip(p, 6), "neither a safetensors|damaged"),
    "text": (lambda p: p.write_text("these are not weights, just words"), "neither a safetensors file nor"),
    "a web page": (lambda p: p.write_text("<!DOCTYPE html><html>not found</html>"), "neither a safetensors file nor"),
    "newer format": (
        lambda p: rewrite(p, version="99"),
        "format version 99 is newer than the versions supported here \\(up to 3\\); upgrade Vitreous",
    ),
    "config not JSON": (lambda p: rewrite(p, config="{"), "invalid metadata"),
    "config not a table": (lambda p: rewrite(p, config="[1]"), "invalid metadata"),
    "unknown option": (lambda p: changed_config(p, dpeth=3), "no option 'dpeth'; did you mean 'depth'"),
    "wrong type": (lambda p: changed_config(p, dim="wide"), "dim must be a whole number, got 'wide'"),
    "infinite": (lambda p: changed_config(p, mlp_ratio=float("inf")), "numbers must be finite, got Infinity"),
    "beyond integers": (
        lambda p: changed_config(p, num_classes=10**30),
        "num_classes must be a whole number of at most 64 bits",
    ),
    "beyond memory": (
        lambda p: changed_config(p, num_registers=10**30),
        "num_registers must be a whole number of at most 64",
    ),
    "nested to no end": (lambda p: rewrite(p, config="[" * 100_000), "invalid metadata"),
    "absurd depth": (lambda p: changed_config(p, depth=10**9), "depth must lie between 1 and 1024"),
    "absurd width": (lambda p: changed_config(p, dim=3 * 10**8), "dim must be at most 1,048,576"),
    "fewer blocks than said": (lambda p: changed_config(p, depth=3), "12 missing"),
    "more blocks than said": (lambda p: changed_config(p, depth=1), "12 unknown"),
    "labels of another count": (
        lambda p: rewrite(p, spec='{"preprocess": {}, "labels": ["x"]}'),
        "1 class names for 5 classes",
    ),
    "spec incomplete": (lambda p: rewrite(p, spec="{}"), "'labels' is missing"),
    "family unknown": (lambda p: rewrite(p, family="mystery"), "does not contain a known model config"),
    "foreign": (
        lambda p: safetensors.torch.save_file({"a": torch.zeros(2)}, p),
        "does not contain a known model config",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_clear_line(saved, kind):
    spoil, message = BAD_FILES[kind]
    spoil(saved[1])
    with pytest.raises(ValueError, match=message) as caught:
        vt.load(saved[1])
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"there is no weights file .*nowhere.safetensors; check the path"):
        vt.load(tmp_path / "nowhere.safetensors")


def test_what_does_not_fit_is_listed_and_leaves_the_model_alone():
    model, other = tiny(), tiny(dim=96).state_dict()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"different shape \(class_token has shape \(1, 1, 96\), expected \(1, 1, 192\)"
    ):
        vt.load_weights(model, other)
    state = dict(model.state_dict()) | {"spurious": torch.zeros(1)}
    del state["norm.weight"], state["blocks.0.mixer.qkv.weight"]
    with pytest.raises(ValueError, match=r"2 missing .*1 unknown"):
        vt.load_weights(model, state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_foreign_leftovers_are_an_error():
    timm_like = {
        "cls_token": torch.zeros(1, 1, 192),
        "pos_embed": torch.zeros(1, 17, 192),
        "blocks.0.extra.weight": torch.zeros(3),
    }
    with pytest.raises(ValueError, match=r"unknown .*blocks.0.extra.weight"):
        vt.load_weights(tiny(), timm_like)


def test_saving_is_whole_or_not_at_all(saved, tmp_path, monkeypatch):
    model, path = saved
    before = path.read_bytes()

    def fail(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        vt.save(model, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_saving_where_nothing_can_be_saved(saved):
    with pytest.raises(ValueError, match="there is no folder"):
        vt.save(saved[0], "no/such/folder/model.safetensors")


def test_saving_what_could_not_be_read_back(tmp_path):
    model = tiny()
    model.head = torch.nn.Linear(192, 9)
    with pytest.raises(ValueError, match=r"cannot save this ViT.*head.weight is \(9, 192\), expected \(5"):
        vt.save(model, tmp_path / "model.safetensors")


def test_saving_through_a_link_keeps_the_link(saved, tmp_path):
    model, path = saved
    (tmp_path / "link.safetensors").symlink_to(path)
    vt.save(model, tmp_path / "link.safetensors")
    assert (tmp_path / "link.safetensors").is_symlink()


def test_saving_with_names_that_do_not_fit_the_head(tmp_path):
    model = tiny()
    model.spec = vt.Spec(labels=vt.Labels(("only one",)))
    with pytest.raises(ValueError, match="1 class names for 5 classes"):
        vt.save(model, tmp_path / "model.safetensors")
