"""What integers cost in accuracy: one model on labeled photos, in ever fewer bits.

    python -m benchmarks.quantization deit_tiny_16 --weights deit_tiny.safetensors --photos FOLDER --classes FILE

FOLDER has a folder of photos for every class, called by its WordNet id; FILE is the well-known JSON that lists the
1,000 classes as {"0": ["n01440764", "tench"], …}. A few of the photos also calibrate what needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro
from PIL import Image
from rich.progress import track
from torch import Tensor, nn

import vitreous as vt
from benchmarks.record import write_record
from vitreous.deploy.engine import sharing_copy
from vitreous.deploy.native import build, calibrate
from vitreous.deploy.native.convert import Choice
from vitreous.deploy.native.engine import linear_layers, prepare
from vitreous.deploy.native.fallback import Search, relative_error
from vitreous.deploy.native.linear import rules


@dataclass(frozen=True)
class Settings:
    model: tyro.conf.Positional[str]
    weights: Path
    photos: Path
    classes: Path
    calibration: int = 32  # photos, evenly spread
    json: Path | None = None
    seed: int = 0


def read_photos(settings: Settings, transform: Callable[[Image.Image], Tensor]) -> tuple[Tensor, Tensor]:
    numbers = {wnid: int(number) for number, (wnid, _) in json.loads(settings.classes.read_text()).items()}
    paths = sorted(path for path in settings.photos.rglob("*") if path.parent.name in numbers)
    images = [transform(Image.open(path).convert("RGB")) for path in track(paths, "Reading photos")]
    return torch.stack(images), torch.tensor([numbers[path.parent.name] for path in paths])


def naive(model: nn.Module, few: Tensor) -> nn.Module:
    """8 bits as one would do it first: one scale for a matrix, one for all activations of a layer, by extremes."""
    plain = sharing_copy(model)
    names = linear_layers(plain, few)
    extremes: dict[str, Tensor] = {}
    for name in names:
        layer = plain.get_submodule(name)
        layer.register_forward_pre_hook(
            lambda _, given, name=name: extremes.__setitem__(name, torch.stack(given[0].aminmax()))
        )
    plain(few)
    rounded = sharing_copy(model)
    for name in names:
        layer, (low, high) = rounded.get_submodule(name), extremes[name]
        scale = layer.weight.detach().abs().max() / 127
        layer.weight = nn.Parameter((layer.weight.detach() / scale).round() * scale, requires_grad=False)
        step = (high - low) / 255
        layer.register_forward_pre_hook(
            lambda _, given, low=low, step=step: low + step * ((given[0] - low) / step).round().clamp(0, 255)
        )
    return rounded


def schemes(model: nn.Module, few: Tensor) -> dict[str, nn.Module]:
    layers = linear_layers(model, few)
    top = rules(build.library()[1])[3]
    ranges = calibrate.find_ranges(model, few, layers, top)
    few_bits = Choice(dict.fromkeys(layers, "int8"))
    found = {
        "float32": model,
        "int16": prepare(model, Choice(dict.fromkeys(layers, "int16"))),
        "int8, activations per token": prepare(model, few_bits),
        "int8, class token in two halves": prepare(model, replace(few_bits, fine=1)),
        "int8, activations calibrated": prepare(model, few_bits, ranges),
        "int8, naive (min-max of whole tensors)": naive(model, few),
    }
    for tolerance in (0.02, 0.03):
        for fine in (0, 1):
            choice = Search(model, few, "int8", "int16", tolerance, fine).choice()
            more = f"{choice.count('int16')} of {len(layers)} layers in int16"
            halves = ", class token in two halves" if fine else ""
            found[f"int8 with {more}{halves} (error ≤ {tolerance:.0%})"] = prepare(model, choice)
    return found


@torch.inference_mode()
def main(settings: Settings) -> None:
    torch.manual_seed(settings.seed)
    model = vt.create_model(settings.model)
    vt.load_weights(model, settings.weights)
    model.eval()
    photos, labels = read_photos(settings, vt.transforms(model, train=False))
    few = photos[:: max(1, len(photos) // settings.calibration)][: settings.calibration]
    rows = {}
    for name, scheme in schemes(model, few).items():
        logits = torch.cat([scheme(batch) for batch in track(photos.split(25), name)])
        expected = logits if not rows else rows["float32"]["logits"]
        rows[name] = {
            "logits": logits,
            "accuracy": (logits.argmax(1) == labels).float().mean().item(),
            "agreement": (logits.argmax(1) == expected.argmax(1)).float().mean().item(),
            "error": relative_error(logits, expected),
        }
    results = {name: {key: value for key, value in row.items() if key != "logits"} for name, row in rows.items()}
    width = max(map(len, results))
    print(f"{settings.model}, {len(photos)} photos, kernel for {build.library()[0]}")
    print(f"{'':{width}}  accuracy  same answer  logit error")
    for name, row in results.items():
        print(f"{name:{width}}  {row['accuracy']:8.1%}  {row['agreement']:11.1%}  {row['error']:11.2%}")
    if settings.json:
        write_record(settings.json, "benchmarks.quantization", settings.seed, photos=len(photos), results=results)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
