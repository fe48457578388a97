"""Folders of transformers, of timm and of runs: the model is found by what lies beside its weights."""

import json

import pytest
import safetensors.torch
import timm
import torch
import transformers
from PIL import Image
from timm.models._hub import save_for_hf

import vitreous as vt
from tests.parity import TOLERANCE, error, fill
from vitreous.cli import main

VIT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96, "image_size": 32}
NAMES = {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}}
DINO = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 28}
STAGES = {"depths": [1, 2, 1, 1], "image_size": 64}

#: By title: their model, from a config without labels or with three.
THEIRS = {
    "ViT": lambda **o: transformers.ViTForImageClassification(transformers.ViTConfig(**VIT, **o)),
    "ViT, 8×4 patches": lambda **o: transformers.ViTForImageClassification(
        transformers.ViTConfig(**VIT | {"image_size": [32, 64]}, patch_size=8, hidden_act="gelu_new", **o)
    ),
    "DeiT": lambda **o: transformers.DeiTForImageClassification(transformers.DeiTConfig(**VIT, **o)),
    "DeiT with its teacher": lambda **o: transformers.DeiTForImageClassificationWithTeacher(
        transformers.DeiTConfig(**VIT, **o)
    ),
    "Swin": lambda **o: transformers.SwinForImageClassification(
        transformers.SwinConfig(embed_dim=24, num_heads=[1, 2, 4, 8], window_size=2, **STAGES, **o)
    ),
    "ConvNeXt": lambda **o: transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], layer_scale_init_value=1.0, **STAGES, **o)
    ),
}
BARE = {
    "ViT": lambda: transformers.ViTModel(transformers.ViTConfig(**VIT)),
    "DeiT": lambda: transformers.DeiTModel(transformers.DeiTConfig(**VIT)),
    "DINOv2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**DINO)),
    "DINOv2, gated": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**DINO, use_swiglu_ffn=True)),
    "DINOv2 with registers": lambda: transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(**DINO, patch_size=14, num_register_tokens=3)
    ),
}


@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_transformers_folders_need_no_model_name(name, tmp_path):
    theirs = fill(THEIRS[name](**NAMES))
    theirs.save_pretrained(tmp_path)
    ours = vt.load(tmp_path).eval()
    images = torch.randn(2, 3, *ours.config.image_size)
    assert error(ours(images), theirs(images).logits) < TOLERANCE
    assert ours.spec.labels.names == ("cat", "dog", "owl")


@pytest.mark.parametrize("name", BARE)
@torch.no_grad()
def test_models_without_a_classifier(name, tmp_path):
    theirs = fill(BARE[name]())
    theirs.save_pretrained(tmp_path)
    ours = vt.load(tmp_path).eval()
    images = torch.randn(2, 3, *ours.config.image_size)
    assert ours.config.num_classes == 0
    assert error(ours.features(images).tokens, theirs(images).last_hidden_state) < TOLERANCE


@torch.no_grad()
def test_a_classifier_that_reads_more_than_ours_is_refused_and_can_be_left_out(tmp_path):
    theirs = fill(transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**DINO, **NAMES)))
    theirs.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"classifier.weight has shape \(3, 96\), expected \(3, 48\)"):
        vt.load(tmp_path)
    ours, images = vt.load(tmp_path, num_classes=0).eval(), torch.randn(1, 3, 28, 28)
    assert error(ours.features(images).tokens, theirs.dinov2(images).last_hidden_state) < TOLERANCE


@torch.no_grad()
def test_every_way_to_hold_the_weights(tmp_path):
    theirs = fill(THEIRS["ViT"](**NAMES))
    ways = {"one": {}, "shards": {"max_shard_size": "30KB"}}
    for way, options in ways.items():
        theirs.save_pretrained(tmp_path / way, **options)
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    (tmp_path / "bin").mkdir()
    torch.save(theirs.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    (tmp_path / "bin" / "config.json").write_bytes((tmp_path / "one" / "config.json").read_bytes())
    images = torch.randn(1, 3, 32, 32)
    for way in (*ways, "bin"):
        assert error(vt.load(tmp_path / way).eval()(images), theirs(images).logits) < TOLERANCE
    model = vt.create_model(vt.load(tmp_path / "one").config.override(num_classes=9))
    report = vt.load_weights(model, tmp_path / "shards")
    assert report.fresh == ["head.weight", "head.bias"]
    assert report.notes[0].startswith("read from ")
    assert not model.spec.labels.names


def test_a_folder_and_the_name_of_its_model(tmp_path):
    """The caller is believed; names and preprocessing still come from the folder."""
    theirs = fill(THEIRS["ViT"](**NAMES))
    theirs.save_pretrained(tmp_path)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    config = vt.load(tmp_path).config
    model = vt.load(tmp_path, model=config, image_size=48)
    assert model.spec.labels.names == ("cat", "dog", "owl")
    assert model.spec.preprocess.mean == (0.5, 0.5, 0.5)
    assert model.config.image_size == model.spec.preprocess.image_size == (48, 48)


PREPROCESSING = {
    "squeezed": ({"size": {"height": 32, "width": 32}, "resample": 2}, (1.0, "bilinear")),
    "cut": (
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True},
        (0.8, "bicubic"),
    ),
    "ConvNeXt's": ({"size": {"shortest_edge": 32}, "crop_pct": 0.875, "resample": 3}, (0.875, "bicubic")),
    "old": ({"size": 32, "resample": 2}, (1.0, "bilinear")),
    "old, cut": ({"size": 40, "crop_size": 32, "do_center_crop": True}, (0.8, "bicubic")),
}  # fmt: skip


@pytest.mark.parametrize("kind", PREPROCESSING)
def test_how_images_are_prepared(kind, tmp_path):
    given, (ratio, interpolation) = PREPROCESSING[kind]
    THEIRS["ViT"](**NAMES).save_pretrained(tmp_path)
    described = given | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "do_normalize": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
    preprocess = vt.load(tmp_path).spec.preprocess
    assert (preprocess.crop_ratio, preprocess.interpolation) == (ratio, interpolation)
    assert (preprocess.mean, preprocess.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_labels_that_nobody_has_given_are_none(tmp_path):
    THEIRS["ViT"](num_labels=4).save_pretrained(tmp_path)
    model = vt.load(tmp_path)
    assert (model.config.num_classes, model.spec.labels.names) == (4, ())


@torch.no_grad()
def test_timms_folders(tmp_path):
    theirs = fill(timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=2))
    labels = {"label_names": ["n1", "n2", "n3"], "label_descriptions": {"n1": "cat", "n2": "dog", "n3": "owl"}}
    save_for_hf(theirs, tmp_path, model_config=labels, model_args={}, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    ours = vt.load(tmp_path, model="vit_tiny_16", depth=2).eval()
    images = torch.randn(1, 3, 224, 224)
    assert error(ours(images), theirs(images)) < TOLERANCE
    assert ours.spec.labels.names == ("cat", "dog", "owl")
    assert ours.spec.preprocess.mean == tuple(config["pretrained_cfg"]["mean"])


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("vit_tiny_patch16_224", 48, {"img_size": 48, "global_pool": "avg", "in_chans": 1}),
        ("deit_tiny_distilled_patch16_224", 64, {"img_size": 64}),
        ("convnext_atto", 64, {}),
        ("poolformer_s12", 64, {}),
        ("resnet18", 96, {}),
    ],
)
@torch.no_grad()
def test_timms_folders_need_no_model_name(name, size, options, tmp_path):
    theirs = fill(timm.create_model(name, num_classes=5, **options))
    channels = options.get("in_chans", 3)
    save_for_hf(theirs, tmp_path, data_config={"input_size": (channels, size, size)}, safe_serialization=True)
    ours = vt.load(tmp_path).eval()
    images = torch.randn(1, channels, size, size)
    assert ours.config.image_size == (size, size)
    assert error(ours(images), theirs(images)) < TOLERANCE


def test_a_folder_of_a_run(tmp_path):
    model = fill(vt.create_model("vit_tiny_16", depth=1, image_size=32, num_classes=2))
    model.name_classes(("a", "b"))
    vt.save(model, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("null")  # a run's own, which says nothing of the model
    images = torch.randn(1, 3, 32, 32)
    for made in (vt.load(tmp_path), vt.Predictor(tmp_path).model, vt.load(str(tmp_path))):
        assert made.spec.labels.names == ("a", "b")
        assert torch.equal(made.eval()(images), model(images))


def test_predicting_with_a_folder(tmp_path, capsys):
    THEIRS["ViT"](**NAMES).save_pretrained(tmp_path / "model")
    Image.new("RGB", (40, 40), (90, 120, 30)).save(tmp_path / "image.png")
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "image.png"), "--format", "jsonl"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert all(name in line for name in ("cat", "dog", "owl"))
    kept = ["--format", "jsonl", "--output", str(tmp_path / "kept.jsonl")]
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "image.png"), *kept]) == 0
    assert (tmp_path / "kept.jsonl").read_text().splitlines() == [line]
    (tmp_path / "kept.jsonl").unlink()
    assert main(["predict", str(tmp_path), str(tmp_path / "image.png")]) == 2
    error = capsys.readouterr().err
    assert "a folder without model.safetensors or pytorch_model.bin" in error
    assert "it contains image.png, model/" in error
    report = vt.load_weights(vt.load(tmp_path / "model"), tmp_path / "model")
    assert "no preprocessor_config.json: ImageNet preprocessing is assumed" in report.notes


def write(folder, **files):
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content if isinstance(content, str) else json.dumps(content))


def index(**where):
    return {"metadata": {}, "weight_map": where}


INDEX = "model__safetensors__index__json"
TINY = {"a": torch.zeros(2)}
BAD = {
    "empty": ({}, "a folder without model.safetensors or pytorch_model.bin; it is empty"),
    "others": ({"notes__txt": "x", "log__jsonl": "y"}, "it contains log.jsonl, notes.txt; pass the path of"),
    "missing shard": ({INDEX: index(a="one.safetensors")}, "one.safetensors, listed in model.safe.*, is missing"),
    "tensor not there": ({INDEX: index(a="there.safetensors", b="there.safetensors")}, r"lack 1 tensors .*\(b\)"),
    "path outside": ({INDEX: index(a="../there.safetensors")}, "refers to a file outside its folder"),
    "absolute path": ({INDEX: index(a="/etc/passwd")}, "refers to a file outside its folder"),
    "index a list": ({INDEX: [1]}, "must contain one JSON object"),
    "index without a map": ({INDEX: {"weight_map": [1]}}, "has no valid weight_map"),
    "index of numbers": ({INDEX: index(a=3)}, "has no valid weight_map"),
    "index nested": ({INDEX: "[" * 100_000}, "not valid JSON"),
    "no config": ({}, "does not contain a known model config"),
    "config unknown": ({"config__json": {"model_type": "bert"}}, "the unsupported model type 'bert'"),
    "config empty": ({"config__json": {}}, "the unsupported model type None"),
    "config null": ({"config__json": "null"}, "must contain one JSON object"),
    "config a list": ({"config__json": "[]"}, "must contain one JSON object"),
    "config of NaN": ({"config__json": '{"model_type": NaN}'}, "numbers must be finite, got NaN"),
    "act unknown": (
        {"config__json": {"model_type": "vit", "hidden_act": "quick_gelu"}},
        "describes no supported model",
    ),
    "architecture unknown": (
        {"config__json": {"architecture": "efficientnet_b0"}},
        "is timm's 'efficientnet_b0', an unsupported architecture",
    ),
    "settings of its own": (
        {"config__json": {"architecture": "vit_tiny_patch16_224", "model_args": {"act_layer": "relu"}}},
        r"with unsupported settings \(act_layer\); pass the model, e.g. model=",
    ),
    "absurd": ({"config__json": {"model_type": "vit", "num_hidden_layers": 10**9}}, "depth must lie"),
    "too wide": (
        {"config__json": {"model_type": "vit", "hidden_size": 3 * 10**8, "num_hidden_layers": 1}},
        "dim must be at most",
    ),
    "wide": ({"config__json": {"model_type": "vit", "hidden_size": 3 << 18, "num_hidden_layers": 1}}, "does not fit"),
    "deep": ({"config__json": {"model_type": "vit"}}, "config.json: the config has 12 blocks but the file only"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_folders_are_one_line_that_says_what_to_do(kind, tmp_path):
    files, message = BAD[kind]
    if "config__json" in files or kind == "no config":
        safetensors.torch.save_file(TINY, tmp_path / "model.safetensors")
    if INDEX in files:
        safetensors.torch.save_file(TINY, tmp_path / "there.safetensors")
    write(tmp_path, **files)
    with pytest.raises(ValueError, match=message) as caught:
        vt.load(tmp_path)
    assert "\n" not in str(caught.value)
