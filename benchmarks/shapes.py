"""Drawing speed and difficulty of Shapes: a linear classifier on pixels against a small ResNet.

python -m benchmarks.shapes --minutes 8
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

import vitreous as vt
from vitreous.data.shapes import Scenes

RECORD = Path(__file__).parents[1] / "docs" / "records" / "shapes.json"
BATCH = 64


def images_per_second(rounds: int = 20) -> float:
    """Best of several rounds of 1,024 scenes of 64 pixels, on one core: drawing is single-threaded."""
    shapes = vt.Shapes(2**30)
    shapes.batch(range(256))
    seconds = []
    for index in range(rounds):
        start = time.process_time()
        shapes.batch(range(1024 * index, 1024 * (index + 1)))
        seconds.append(time.process_time() - start)
    return 1024 / min(seconds)


def tensor(scenes: Scenes) -> torch.Tensor:
    return torch.from_numpy(scenes.images).float() / 127.5 - 1


def train(model: nn.Module, seconds: float, peak: float) -> int:
    """Train on fresh scenes with AdamW and a schedule by wall-clock time; return the number of images."""
    data = vt.Shapes(2**40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.02)
    start, step = time.monotonic(), 0
    while (done := (time.monotonic() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, done / 0.05) * 0.5 * (1 + math.cos(math.pi * done))
        scenes = data.batch(range(step * BATCH, (step + 1) * BATCH))
        loss = F.cross_entropy(model(tensor(scenes)), torch.from_numpy(scenes.labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"  {done:4.0%}  {step * BATCH:,} images, loss {loss.item():.3f}", flush=True)
    return step * BATCH


@torch.inference_mode()
def accuracy(model: nn.Module, number: int = 4000) -> float:
    data = vt.Shapes(number, seed=1)
    model.eval()
    correct = 0
    for start in range(0, number, 500):
        scenes = data.batch(range(start, start + 500))
        correct += int((model(tensor(scenes)).argmax(1).numpy() == scenes.labels).sum())
    return correct / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="training time of the ResNet")
    options = parser.parse_args()
    torch.manual_seed(0)
    result = {"images_per_second_64px_one_core": round(images_per_second())}
    print(result)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10))
    resnet = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    for name, model, minutes, peak in (("linear", linear, 1.0, 1e-4), ("resnet10", resnet, options.minutes, 2e-3)):
        num_images = train(model, 60 * minutes, peak)
        result[name] = {"accuracy": round(accuracy(model), 4), "images": num_images, "minutes": minutes}
        print(name, result[name])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    record = {
        "command": f"python -m benchmarks.shapes --minutes {options.minutes:g}",
        "commit": commit,
        "seed": 0,
        "threads": torch.get_num_threads(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "result": result,
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
