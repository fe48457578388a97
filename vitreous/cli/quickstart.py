"""vitreous quickstart"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from vitreous.cli.display import out
from vitreous.data.augment import evaluation_pixels
from vitreous.data.shapes import Scenes, Shapes
from vitreous.draw.overlay import attention_sheet
from vitreous.explain.record import record
from vitreous.models.base import Backbone
from vitreous.recipes.quickstart import recipe
from vitreous.runs.run import train
from vitreous.train.loop import Interrupted, TrainOutcome
from vitreous.weights.load import load


def quickstart(output: Path = Path("runs/quickstart"), steps: int = recipe.train.steps, seed: int = 0) -> None:
    """Train a small ViT on Shapes, evaluate it on held-out scenes, and draw its attention.

    Args:
        output: Run folder for the model, the report and images. An existing run is resumed, or shown again if finished.
        steps: Number of training steps, of 32 scenes each.
        seed: Random seed of the weights and the scenes.
    """
    if steps < 1:
        raise ValueError(f"steps must be positive, got {steps}")
    out.print(f"Training a small ViT to classify shapes ({', '.join(Shapes.classes)}).")
    data, training = replace(recipe.data, seed=seed), replace(recipe.train, steps=steps, seed=seed)
    try:
        outcome = train(replace(recipe, data=data, train=training), output, resume=True)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; repeat the command to continue") from None
    model = load(output / "model.safetensors")
    assert isinstance(model, Backbone)
    draw_attention(model, output, seed=seed + 1)
    out.print(closing_message(outcome, output), soft_wrap=True)


@torch.inference_mode()
def draw_attention(model: Backbone, output: Path, *, seed: int) -> None:
    """Save twelve scenes, and a sheet of their attention maps with the predicted classes."""
    scenes = Shapes(12, recipe.model.image_size, seed=seed).batch(range(12))
    with record(model.eval()) as trace:
        images = evaluation_pixels(torch.from_numpy(scenes.images), model.spec.preprocess)
        predictions = model(images).argmax(1).tolist()
    titles = [
        f"{Shapes.classes[predicted]}" + ("" if predicted == label else f" (true: {Shapes.classes[label]})")
        for predicted, label in zip(predictions, scenes.labels, strict=True)
    ]
    save_scenes(scenes, output / "scenes")
    attention_sheet(scenes.images, trace.mean_map(), titles, output / "attention.png")


def save_scenes(scenes: Scenes, folder: Path) -> None:
    """Save the scenes as images named after their captions."""
    folder.mkdir(exist_ok=True)
    for index, (image, caption) in enumerate(zip(scenes.images, scenes.captions, strict=True)):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{index:02} {caption}.png")


def closing_message(outcome: TrainOutcome, output: Path) -> str:
    """Format accuracy, files and next commands."""
    program = "vitreous" if shutil.which("vitreous") else os.path.relpath(sys.argv[0])
    tested = len(outcome.meter or ())
    return f"""
Accuracy [bold]{outcome.metrics["accuracy"]:.1%}[/bold] on {tested:,} held-out scenes (chance: 10 %), \
after training on {outcome.images:,} images in {outcome.seconds:.0f} seconds.

  {output}/model.safetensors   the trained model
  {output}/attention.png       attention maps
  {output}/report.html         training curves, confusion matrix, worst mistakes

Next:
  {program} predict {output}/model.safetensors {output}/scenes
  {program} evaluate {output}/model.safetensors --data shapes
  {program} train --help
  {program} cost vit_tiny_16 vit_base_16 --image-size 224 384"""
