"""Accuracy of a quantized model on labeled photos, by bit width and scheme.

    python -m benchmarks.quantization deit_tiny_16 --weights deit_tiny.safetensors --photos FOLDER --classes FILE

FOLDER has a folder of photos per class, named by its WordNet id; FILE is the common JSON that lists the 1,000 classes
as {"0": ["n01440764", "tench"], …}. Some of the photos also serve as calibration data.
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
from vitreous.deploy.engine import copy_sharing_weights
from vitreous.deploy.native import build, calibrate
from vitreous.deploy.native.convert import PrecisionPlan
from vitreous.deploy.native.engine import linear_layers, to_native
from vitreous.deploy.native.linear import packing
from vitreous.deploy.native.mixed_precision import PlanSearch, relative_error


@dataclass(frozen=True)
class Settings:
    model: tyro.conf.Positional[str]
    weights: Path
    photos: Path
    classes: Path
    calibration: int = 32  # evenly spaced photos
    json: Path | None = None
    seed: int = 0


def read_photos(settings: Settings, transform: Callable[[Image.Image], Tensor]) -> tuple[Tensor, Tensor]:
    numbers = {wnid: int(number) for number, (wnid, _) in json.loads(settings.classes.read_text()).items()}
    paths = sorted(path for path in settings.photos.rglob("*") if path.parent.name in numbers)
    images = [transform(Image.open(path).convert("RGB")) for path in track(paths, "Reading photos")]
    return torch.stack(images), torch.tensor([numbers[path.parent.name] for path in paths])


def naive(model: nn.Module, calibration_images: Tensor) -> nn.Module:
    """Naive 8-bit quantization: one min-max scale per matrix, and one per layer for all activations."""
    observed = copy_sharing_weights(model)
    names = linear_layers(observed, calibration_images)
    extremes: dict[str, Tensor] = {}
    for name in names:
        layer = observed.get_submodule(name)
        layer.register_forward_pre_hook(
            lambda _, inputs, name=name: extremes.__setitem__(name, torch.stack(inputs[0].aminmax()))
        )
    observed(calibration_images)
    rounded = copy_sharing_weights(model)
    for name in names:
        layer, (low, high) = rounded.get_submodule(name), extremes[name]
        scale = layer.weight.detach().abs().max() / 127
        layer.weight = nn.Parameter((layer.weight.detach() / scale).round() * scale, requires_grad=False)
        step = (high - low) / 255
        layer.register_forward_pre_hook(
            lambda _, inputs, low=low, step=step: low + step * ((inputs[0] - low) / step).round().clamp(0, 255)
        )
    return rounded


def schemes(model: nn.Module, calibration_images: Tensor) -> dict[str, nn.Module]:
    layers = linear_layers(model, calibration_images)
    top = packing(build.library()[1]).max_activation
    ranges = calibrate.calibrate_ranges(model, calibration_images, layers, top)
    few_bits = PrecisionPlan(dict.fromkeys(layers, "int8"))
    found = {
        "float32": model,
        "int16": to_native(model, PrecisionPlan(dict.fromkeys(layers, "int16"))),
        "int8, activations per token": to_native(model, few_bits),
        "int8, class token in two halves": to_native(model, replace(few_bits, precise_tokens=1)),
        "int8, activations calibrated": to_native(model, few_bits, ranges),
        "int8, naive (min-max of whole tensors)": naive(model, calibration_images),
    }
    for tolerance in (0.02, 0.03):
        for precise_tokens in (0, 1):
            plan = PlanSearch(model, calibration_images, "int8", "int16", tolerance, precise_tokens).run()
            mixed = f"{plan.count('int16')} of {len(layers)} layers in int16"
            split = ", class token in two halves" if precise_tokens else ""
            found[f"int8 with {mixed}{split} (error ≤ {tolerance:.0%})"] = to_native(model, plan)
    return found


@torch.inference_mode()
def main(settings: Settings) -> None:
    torch.manual_seed(settings.seed)
    model = vt.create_model(settings.model)
    vt.load_weights(model, settings.weights)
    model.eval()
    photos, labels = read_photos(settings, vt.transforms(model, train=False))
    calibration_images = photos[:: max(1, len(photos) // settings.calibration)][: settings.calibration]
    rows = {}
    for name, scheme in schemes(model, calibration_images).items():
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
    print(f"{'':{width}}  accuracy    agreement  logit error")
    for name, row in results.items():
        print(f"{name:{width}}  {row['accuracy']:8.1%}  {row['agreement']:11.1%}  {row['error']:11.2%}")
    if settings.json:
        write_record(settings.json, "benchmarks.quantization", settings.seed, photos=len(photos), results=results)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
