"""Fine-tuning on a few hundred images: the settings chosen by Vitreous beside three plain scripts, at equal time.

    python -m benchmarks.finetuning WEIGHTS FOLDER [FOLDER …]     writes docs/figures/finetuning.json

WEIGHTS are those of DeiT-Tiny under timm's names. Each FOLDER holds ``train/`` and ``test/`` with a folder per class.

| arm | what it is |
|---|---|
| chosen | what ``vitreous train --data FOLDER --weights WEIGHTS`` chooses, on all training images |
| plain | AdamW 1e-4, one cycle, label smoothing 0.1, random resized crops and flips |
| timm | AdamW 5e-4 × batch / 512, decay 0.05, cosine, RandAugment 7, MixUp 0.8, CutMix 1, erasing |
| probe | logistic regression (scikit-learn, C = 1) on standardized features of the frozen model |

The plain scripts and timm's see every image ``--epochs`` times; ours sees them a third of an epoch less, since its
linear probe costs one forward pass. Test accuracy is that of the last weights; nothing is selected by it.
"""

from __future__ import annotations

import argparse
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
from vitreous.runs.choose import choose
from vitreous.runs.prepare import prepare
from vitreous.runs.run import train_on
from vitreous.train.parallel import World

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
BATCH = 32


def chosen(weights: str, folder: Path, epochs: float, seed: int) -> float:
    recipe, _ = choose(str(folder), "deit_tiny_16", weights)
    train = recipe.train.override(epochs=epochs - 1 / 3, seed=seed, evaluate_every=0, device="cpu")
    recipe = replace(recipe, train=train, data=replace(recipe.data, valid="test", valid_share=0.0))
    with tempfile.TemporaryDirectory() as output:
        outcome = train_on(prepare(recipe), recipe, Path(output), World(), resume=False)
    return float(outcome.metrics["accuracy"])


def pretrained(weights: str, num_classes: int, **options: Any) -> nn.Module:
    model = timm.create_model("deit_tiny_patch16_224", num_classes=num_classes, **options)
    own = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith("head.")}
    model.load_state_dict(own, strict=False)
    return model


def batches(folder: Path, *, train: bool, **augmentation: Any) -> DataLoader[Any]:
    transform = create_transform(224, is_training=train, interpolation="bicubic", crop_pct=0.9, **augmentation)
    part = ImageFolder(str(folder / ("train" if train else "test")), transform)
    return DataLoader(part, BATCH, shuffle=train, drop_last=train and len(part) >= BATCH, num_workers=0)


@torch.no_grad()
def accuracy(model: nn.Module, folder: Path) -> float:
    right = [(model.eval()(x).argmax(1) == y).double() for x, y in batches(folder, train=False)]
    return float(torch.cat(right).mean())


def plain(weights: str, folder: Path, epochs: int, seed: int) -> float:
    data = batches(folder, train=True, color_jitter=None)
    model = pretrained(weights, len(data.dataset.classes))  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-4, total_steps=epochs * len(data))
    learn(model, data, epochs, optimizer, nn.CrossEntropyLoss(label_smoothing=0.1), schedule.step)
    return accuracy(model, folder)


def timm_recipe(weights: str, folder: Path, epochs: int, seed: int) -> float:
    data = batches(folder, train=True, auto_augment="rand-m7-mstd0.5-inc1", re_prob=0.25)
    num_classes, total = len(data.dataset.classes), epochs * len(data)  # type: ignore[attr-defined]
    model = pretrained(weights, num_classes, drop_path_rate=0.1)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=num_classes)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4 * BATCH / 512, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=max(1, total // 10))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - total // 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [max(1, total // 10)])
    learn(model, data, epochs, optimizer, SoftTargetCrossEntropy(), schedule.step, mixup)
    return accuracy(model, folder)


def learn(
    model: nn.Module,
    data: DataLoader[Any],
    epochs: int,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    step: Callable[[], None],
    mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda x, y: (x, y),
) -> None:
    model.train()
    for _ in range(epochs):
        for images, targets in data:
            x, y = mix(images, targets)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            step()


def probe(weights: str, folder: Path, epochs: int, seed: int) -> float:
    model = pretrained(weights, 0).eval()

    @torch.no_grad()
    def features(train: bool) -> tuple[Any, Any]:
        transform = create_transform(224, is_training=False, interpolation="bicubic", crop_pct=0.9)
        part = ImageFolder(str(folder / ("train" if train else "test")), transform)
        found = [(model(x), y) for x, y in DataLoader(part, BATCH)]
        return tuple(torch.cat(column).numpy() for column in zip(*found, strict=True))

    (x, y), (unseen, truth) = features(True), features(False)
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    fitted = LogisticRegression(max_iter=2000).fit((x - mean) / deviation, y)
    return float(fitted.score((unseen - mean) / deviation, truth))


ARMS: dict[str, Callable[[str, Path, int, int], float]] = {
    "chosen": chosen,
    "plain": plain,
    "timm": timm_recipe,
    "probe": probe,
}


def measured(weights: str, folders: list[Path], epochs: int, seeds: int) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        for folder in folders:
            for name, arm in ARMS.items():
                torch.manual_seed(seed)
                np.random.seed(seed)  # what timm's augmentations draw from
                start = time.perf_counter()
                found = arm(weights, folder, epochs, seed)
                seconds = round(time.perf_counter() - start, 1)
                yield {"data": folder.name, "arm": name, "seed": seed, "accuracy": found, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--record", type=Path, default=FIGURES / "finetuning.json")
    settings = parser.parse_args()
    rows = []
    for row in measured(settings.weights, settings.folders, settings.epochs, settings.seeds):
        print(f"{row['data']:<12} seed {row['seed']}  {row['arm']:<7} {row['accuracy']:.1%}  {row['seconds']:.0f} s")
        rows.append(row)
        write_record(settings.record, "benchmarks.finetuning", 0, results=rows)


if __name__ == "__main__":
    main()
