"""Fine-tuning on a few hundred images: settings chosen by Vitreous against three plain scripts, at equal CPU time.

    python -m benchmarks.finetuning WEIGHTS FOLDER [FOLDER …]     writes docs/records/finetuning.json

WEIGHTS are those of DeiT-Tiny under timm's names. Each FOLDER contains ``train/`` and ``test/``, with a folder per
class.

| arm | definition |
|---|---|
| chosen | what ``vitreous train --data FOLDER --weights WEIGHTS`` chooses, on all training images |
| plain | AdamW 1e-4, one cycle, label smoothing 0.1, random resized crops and flips |
| timm | AdamW 5e-4 × batch / 512, decay 0.05, cosine, RandAugment 7, MixUp 0.8, CutMix 1, erasing |
| probe | logistic regression (scikit-learn, C = 1) on standardized features of the frozen model |

Vitreous trains for ``--epochs``. The plain script and timm's recipe then train for as many steps as fit into the CPU
time of that run, its linear probe included, less one pass over the test images; the probe has no budget. CPU time is
used so that other load on the machine does not matter. Test accuracy is that of the last weights, without
selection.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.record import write_record
from vitreous.runs.choose import choose_recipe
from vitreous.runs.prepare import prepare_run
from vitreous.runs.run import run_training
from vitreous.train.parallel import World

RECORDS = Path(__file__).parents[1] / "docs" / "records"
BATCH = 32


def chosen(weights: str, folder: Path, epochs: int, seed: int) -> float:
    recipe, _ = choose_recipe(str(folder), "deit_tiny_16", weights)
    train = recipe.train.override(epochs=epochs, seed=seed, evaluate_every=0, device="cpu")
    recipe = replace(recipe, train=train, data=replace(recipe.data, valid="test", valid_share=0.0))
    with tempfile.TemporaryDirectory() as output:
        outcome = run_training(prepare_run(recipe), recipe, Path(output), World(), resume=False)
    return float(outcome.metrics["accuracy"])


def pretrained(weights: str, num_classes: int, **options: Any) -> nn.Module:
    model = timm.create_model("deit_tiny_patch16_224", num_classes=num_classes, **options)
    backbone = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith("head.")}
    model.load_state_dict(backbone, strict=False)
    return model


def batches(folder: Path, *, train: bool, **augmentation: Any) -> DataLoader[Any]:
    transform = create_transform(224, is_training=train, interpolation="bicubic", crop_pct=0.9, **augmentation)
    part = ImageFolder(str(folder / ("train" if train else "test")), transform)
    return DataLoader(part, BATCH, shuffle=train, drop_last=train and len(part) >= BATCH, num_workers=0)


@torch.no_grad()
def accuracy(model: nn.Module, folder: Path) -> float:
    correct = [(model.eval()(x).argmax(1) == y).double() for x, y in batches(folder, train=False)]
    return float(torch.cat(correct).mean())


def plain(weights: str, folder: Path, seconds: float, seed: int) -> float:
    data = batches(folder, train=True, color_jitter=None)
    model = pretrained(weights, len(data.dataset.classes))  # type: ignore[attr-defined]
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    steps = steps_within(model, data, loss, seconds)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-4, total_steps=steps + 1)
    train_steps(model, data, steps, optimizer, loss, schedule.step)
    return accuracy(model, folder)


def timm_recipe(weights: str, folder: Path, seconds: float, seed: int) -> float:
    data = batches(folder, train=True, auto_augment="rand-m7-mstd0.5-inc1", re_prob=0.25)
    num_classes = len(data.dataset.classes)  # type: ignore[attr-defined]
    model = pretrained(weights, num_classes, drop_path_rate=0.1)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=num_classes)
    loss = SoftTargetCrossEntropy()
    steps = steps_within(model, data, loss, seconds, mixup)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4 * BATCH / 512, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=max(1, steps // 10))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - steps // 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [max(1, steps // 10)])
    train_steps(model, data, steps, optimizer, loss, schedule.step, mixup)
    return accuracy(model, folder)


Mix = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


def unmixed(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return images, targets


def train_steps(
    model: nn.Module,
    data: DataLoader[Any],
    steps: int,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    step: Callable[[], None],
    mix: Mix = unmixed,
) -> None:
    model.train()
    epochs = itertools.chain.from_iterable(data for _ in itertools.count())
    for images, targets in itertools.islice(epochs, steps):
        x, y = mix(images, targets)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        step()


def steps_within(model: nn.Module, data: DataLoader[Any], loss: Loss, seconds: float, mix: Mix = unmixed) -> int:
    """Number of steps that fit into ``seconds`` of CPU time, timed on three steps of a copy after a warm-up step."""
    trial = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(trial.parameters(), 0.0)
    times: list[float] = []
    train_steps(trial, data, 4, optimizer, loss, lambda: times.append(time.process_time()), mix)
    return max(1, round(3 * seconds / (times[-1] - times[0])))


def probe(weights: str, folder: Path, seconds: float, seed: int) -> float:
    model = pretrained(weights, 0).eval()

    @torch.no_grad()
    def features(train: bool) -> tuple[Any, Any]:
        transform = create_transform(224, is_training=False, interpolation="bicubic", crop_pct=0.9)
        part = ImageFolder(str(folder / ("train" if train else "test")), transform)
        result = [(model(x), y) for x, y in DataLoader(part, BATCH)]
        return tuple(torch.cat(column).numpy() for column in zip(*result, strict=True))

    (x, y), (test_features, truth) = features(True), features(False)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    fitted = LogisticRegression(max_iter=2000).fit((x - mean) / deviation, y)
    return float(fitted.score((test_features - mean) / deviation, truth))


ARMS: dict[str, Callable[[str, Path, float, int], float]] = {"plain": plain, "timm": timm_recipe, "probe": probe}


def run_arms(weights: str, folders: list[Path], epochs: int, seeds: int) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        for folder in folders:
            result, chosen_seconds = timed(chosen, weights, folder, epochs, seed)
            yield {
                "data": folder.name,
                "arm": "chosen",
                "seed": seed,
                "accuracy": result,
                "cpu_seconds": chosen_seconds,
            }
            _, evaluation = timed(accuracy, pretrained(weights, 10), folder)
            for name, arm in ARMS.items():
                torch.manual_seed(seed)
                np.random.seed(seed)  # the RNG of timm's augmentations
                result, seconds = timed(arm, weights, folder, chosen_seconds - evaluation, seed)
                yield {"data": folder.name, "arm": name, "seed": seed, "accuracy": result, "cpu_seconds": seconds}


def timed(function: Callable[..., float], *arguments: Any) -> tuple[float, float]:
    start = time.process_time()
    result = function(*arguments)
    return result, round(time.process_time() - start, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path, default=RECORDS / "finetuning.json")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    rows = []
    for row in run_arms(settings.weights, settings.folders, settings.epochs, settings.seeds):
        print(
            f"{row['data']:<12} seed {row['seed']}  {row['arm']:<7} {row['accuracy']:.1%}  {row['cpu_seconds']:.0f} s",
            flush=True,
        )
        rows.append(row)
        write_record(settings.record, "benchmarks.finetuning", 0, results=rows)


if __name__ == "__main__":
    main()
