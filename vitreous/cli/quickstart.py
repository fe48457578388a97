"""vitreous quickstart"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from vitreous.cli.show import out
from vitreous.data.augment import evaluation_pixels
from vitreous.data.shapes import Scenes, Shapes
from vitreous.draw.overlay import attention_sheet
from vitreous.explain.record import record
from vitreous.models.base import Backbone
from vitreous.recipes.quickstart import recipe
from vitreous.runs.run import train
from vitreous.train.loop import Outcome
from vitreous.weights.load import load


def quickstart(output: Path = Path("runs/quickstart"), steps: int = recipe.train.steps, seed: int = 0) -> None:
    """Train a small ViT on Shapes, test it on scenes it has never seen, and draw what it looks at.

    Args:
        output: The run's folder: model, report, images. A run that is there already is finished and shown again.
        steps: How long to train, in steps of 32 scenes.
        seed: Of weights and scenes.
    """
    if steps < 1:
        raise ValueError(f"steps must be positive, got {steps}")
    out.print(f"A small ViT learns to name shapes ({', '.join(Shapes.classes)}).")
    data, training = replace(recipe.data, seed=seed), replace(recipe.train, steps=steps, seed=seed)
    outcome = train(replace(recipe, data=data, train=training), output, resume=True)
    model = load(output / "model.safetensors")
    assert isinstance(model, Backbone)
    draw(model, output, seed=seed + 1)
    out.print(farewell(outcome, output), soft_wrap=True)


@torch.inference_mode()
def draw(model: Backbone, output: Path, *, seed: int) -> None:
    scenes = Shapes(12, recipe.model.image_size, seed=seed).batch(range(12))
    with record(model.eval()) as trace:
        images = evaluation_pixels(torch.from_numpy(scenes.images), model.spec.preprocess)
        answers = model(images).argmax(1).tolist()
    titles = [
        f"{Shapes.classes[a]}" + ("" if a == label else f" (really: {Shapes.classes[label]})")
        for a, label in zip(answers, scenes.labels, strict=True)
    ]
    save_scenes(scenes, output / "scenes")
    attention_sheet(scenes.images, trace.mean_map(), titles, output / "attention.png")


def save_scenes(scenes: Scenes, folder: Path) -> None:
    """As images, named by what they show, to ask the model about."""
    folder.mkdir(exist_ok=True)
    for index, (image, caption) in enumerate(zip(scenes.images, scenes.captions, strict=True)):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{index:02} {caption}.png")


def farewell(outcome: Outcome, output: Path) -> str:
    program = "vitreous" if shutil.which("vitreous") else os.path.relpath(sys.argv[0])
    tested = len(outcome.meter or ())
    return f"""
[bold]{outcome.metrics["accuracy"]:.1%}[/bold] of {tested:,} scenes it had never seen are named rightly \
(guessing: 10 %).
It has seen {outcome.images:,} others, in {outcome.seconds:.0f} seconds.

  {output}/model.safetensors   the model
  {output}/attention.png       what it looks at
  {output}/report.html         how it learned, what it confuses, its worst mistakes

Next:
  {program} predict {output}/model.safetensors {output}/scenes
  {program} evaluate {output}/model.safetensors --data shapes
  {program} train --help
  {program} cost vit_tiny_16 vit_base_16 --image-size 224 384"""
