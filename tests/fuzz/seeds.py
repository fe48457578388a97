"""Valid files of every kind, made once; each case damages copies of them."""

import contextlib
import io
import json
import os
import re
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitreous as vt
from vitreous.cli import main

ROOT = Path(__file__).resolve().parents[2]
SHRUNK = "--model vit_tiny_16 --model.depth 1 --model.dim 16 --model.num-heads 1 --model.image-size 16 16"
STEPS = "--train.workers 1 --train.checkpoint-every 1 --train.steps 2"
TRAIN = f"train --data d {SHRUNK} --model.patch-size 8 8 {STEPS} --output run"


def make_seeds(here: Path) -> Path:
    """Fill the empty folder ``here``, which becomes the working folder meanwhile."""
    os.chdir(here)
    make_images(here / "images")
    make_classes(here / "d")
    make_weights(here / "weights")
    make_transformers_folder(here / "weights" / "hf")
    say(*TRAIN.split())
    say("data", "pack", "d", "shards")
    rows = [f"d/{name}/{i}.png,{name},{'train' if i < 2 else 'val'},{i % 2}" for name in "ab" for i in range(3)]
    (here / "table.csv").write_text("\n".join(["path,label,split,extra", *rows]) + "\n")
    (here / "many.csv").write_text("path,cat,dog\n" + "".join(f"d/a/{i}.png,{i % 2},1\n" for i in range(3)))
    for path in (ROOT / "docs" / "lab" / "results").glob("*a*.json"):
        place = here / "lab" / "quick" / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"key": "x", **json.loads(path.read_text())}))
    return here


def say(*words: str) -> str:
    """What a command prints; it must succeed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        code = main(list(words))
        assert code == 0, said.getvalue()
    return said.getvalue()


def noise(seed: int, mode: str = "RGB", side: int = 20) -> Image.Image:
    bytes_ = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(bytes_).convert(mode)


def make_images(folder: Path) -> None:
    folder.mkdir()
    modes = {
        "png": ("RGB", "RGBA", "L", "P", "1", "I;16"),
        "jpg": ("RGB", "L", "CMYK"),
        "tif": ("RGB", "L", "CMYK", "F"),
    }
    for suffix in ("png", "jpg", "gif", "bmp", "tif", "webp"):
        for mode in modes.get(suffix, ("RGB", "L")):
            image = noise(1) if mode != "I;16" else Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20))
            (image if mode == "I;16" else image.convert(mode)).save(folder / f"{mode.replace(';', '')}.{suffix}")
    for suffix in ("gif", "png", "tif", "webp"):  # several frames
        noise(2).save(folder / f"frames.{suffix}", save_all=True, append_images=[noise(3), noise(4)])
    exif = Image.Exif()
    exif[274], exif[306] = 6, "2020:01:01 00:00:00"
    noise(5).save(folder / "exif.jpg", exif=exif, progressive=True)
    noise(6).save(folder / "lzw.tif", compression="tiff_lzw")


def make_classes(folder: Path) -> None:
    for name in "ab":
        (folder / name).mkdir(parents=True)
        for i in range(3):
            noise(10 + i + ord(name)).save(folder / name / f"{i}.png")


def make_weights(folder: Path) -> None:
    folder.mkdir()
    shrunk = {"image_size": 16, "patch_size": 8, "depth": 1, "dim": 16, "num_heads": 1, "num_classes": 2}
    model = vt.create_model("vit_tiny_16", **shrunk)
    model.name_classes(["a", "b"])
    vt.save(model, folder / "ours.safetensors")
    for path in (ROOT / "tests" / "weights" / "golden").glob("*.safetensors"):
        shutil.copy(path, folder)
    state = model.state_dict()
    torch.save({"state_dict": state, "epoch": 3, "args": {"lr": 0.1}}, folder / "zip.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    np.savez(folder / "arrays.npz", **{name: value.numpy() for name, value in state.items()})


def make_transformers_folder(folder: Path) -> None:
    """A ViT as transformers' ``save_pretrained`` writes it."""
    from safetensors.torch import save_file

    d, block = 16, "vit.encoder.layer.0."
    shapes = {f"{block}attention.attention.{name}.weight": (d, d) for name in ("query", "key", "value")}
    shapes |= {f"{block}attention.output.dense.weight": (d, d), f"{block}intermediate.dense.weight": (32, d)}
    shapes |= {f"{block}output.dense.weight": (d, 32), "classifier.weight": (2, d)}
    shapes |= {"vit.embeddings.patch_embeddings.projection.weight": (d, 3, 8, 8)}
    shapes |= {
        f"{name}.weight": (d,) for name in (f"{block}layernorm_before", f"{block}layernorm_after", "vit.layernorm")
    }
    shapes |= {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items()}
    shapes |= {"vit.embeddings.cls_token": (1, 1, d), "vit.embeddings.position_embeddings": (1, 5, d)}
    config = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": d, "patch_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32, "image_size": 16,
              "num_channels": 3, "qkv_bias": True, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
              "id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}  # fmt: skip
    preprocessor = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                    "resample": 2, "size": {"height": 16, "width": 16}}  # fmt: skip
    folder.mkdir()
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))


@lru_cache
def options_of(*command: str) -> list[str]:
    """The options that a command's help lists."""
    return sorted(set(re.findall(r"^\W*(--[a-z][\w.-]+)", say(*command, "--help"), re.MULTILINE)))
