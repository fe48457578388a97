"""Batched augmentation against torchvision's transforms per image: the same augmentation, from memory.

python -m benchmarks.augment --threads 1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from benchmarks.interleave import interleave, speed_up
from vitreous.data.augment import Augment, Draws, augment_pixels, fill_color
from vitreous.data.crops import training_views
from vitreous.data.view import apply_views
from vitreous.samples import Classes
from vitreous.spec import Preprocess

BATCH = 256
SHIFTED = [v2.RandomCrop(32, padding=4, padding_mode="reflect"), v2.RandomHorizontalFlip()]
RESIZED = [v2.RandomResizedCrop(64, scale=(0.35, 1.0)), v2.RandomHorizontalFlip()]

#: Name → side in pixels, Vitreous settings, and torchvision's transforms before normalization.
SETTINGS: dict[str, tuple[int, Augment, list[v2.Transform]]] = {
    "pad, flip": (32, Augment("pad"), SHIFTED),
    "… RandAugment(2, 9)": (32, Augment("pad", randaugment_ops=2), [*SHIFTED, v2.RandAugment(2, 9)]),
    "resized crop, flip": (64, Augment("resized"), RESIZED),
    "… RandAugment(2, 9) ": (64, Augment("resized", randaugment_ops=2), [*RESIZED, v2.RandAugment(2, 9)]),
}


def batched(images: Tensor, augment: Augment, preprocess: Preprocess) -> Callable[[], Tensor]:
    def run() -> Tensor:
        draws = Draws.sample(0, 0, 0, BATCH, slice(None))
        source = (images.shape[-2], images.shape[-1])
        views = training_views(augment, source, preprocess.image_size, draws)
        cropped = apply_views(images, views, fill_color(preprocess))
        return augment_pixels(cropped, Classes(torch.empty(BATCH, 0)), augment, preprocess=preprocess, draws=draws)[0]

    return run


def per_image(files: list[Tensor] | list[Image.Image], steps: list[v2.Transform]) -> Callable[[], Tensor]:
    preprocess = Preprocess()
    to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, *to_float, v2.Normalize(list(preprocess.mean), list(preprocess.std))])
    return lambda: torch.stack([transform(file) for file in files])


def candidates(side: int, augment: Augment, steps: list[v2.Transform]) -> dict[str, Callable[[], Tensor]]:
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 3, side, side), dtype=np.uint8)
    images = torch.from_numpy(pixels)
    files = [Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))) for image in pixels]
    return {
        "torchvision, Pillow": per_image(files, steps),
        "torchvision, tensors": per_image(list(images), steps),
        "vitreous": batched(images, augment, Preprocess((side, side))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, torchvision {torchvision.__version__}, {options.threads} threads, "
        f"batches of {BATCH}; images/s in the best round, and speed-up over torchvision on Pillow images"
    )
    names = list(candidates(*SETTINGS["pad, flip"]))
    print(f"{'':<20}{'pixels':>7}" + "".join(f"{name:>32}" for name in names))
    for title, setting in SETTINGS.items():
        seconds = interleave(candidates(*setting), options.rounds)
        ratios = speed_up(seconds, names[0])
        cells = (f"{BATCH / min(seconds[n]):,.0f}  {ratios[n][0]:.1f} (median {ratios[n][1]:.1f})" for n in names)
        print(f"{title:<20}{setting[0]:>7}" + "".join(f"{cell:>32}" for cell in cells))


if __name__ == "__main__":
    main()
