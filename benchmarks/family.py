"""Train every family's small configuration with one recipe: accuracy, time, parameters and MACs as a table.

    python -m benchmarks.family runs/family [NAME …]                       Shapes: docs/records/family.json
    python -m benchmarks.family runs/family --cifar10 FOLDER [NAME …]      CIFAR-10: docs/records/family_cifar10.json

32,000 images of 64 pixels each (CIFAR-10's are upsampled), one run after the other. Each run is a folder below the
first argument; finished runs are read, interrupted ones resume.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import vitreous as vt
from benchmarks.training import row
from vitreous.data.augment import Augment
from vitreous.recipes.shapes_family import SHRUNK, recipe
from vitreous.runs.recipe import DataConfig, Recipe

RECORDS = Path(__file__).parent.parent / "docs" / "records"


def on_cifar10(folder: str) -> Recipe:
    """The same settings with random shifts and flips, since this dataset is finite."""
    return replace(recipe, data=DataConfig(folder, valid_share=0.0, valid="test"), augment=Augment(crop="pad", pad=8))


def run(name: str, folder: Path, recipe: Recipe) -> dict[str, Any]:
    config = SHRUNK[name].override(image_size=recipe.model.image_size)
    if not (folder / "result.json").exists():
        vt.train(replace(recipe, model=config), folder, resume=folder.exists())
    macs = vt.cost(config, num_classes=10).macs
    return row(name, folder) | {"macs": macs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--cifar10", default="", metavar="FOLDER")
    options = parser.parse_intermixed_args()
    data = "_cifar10" if options.cifar10 else ""
    record = RECORDS / f"family{data}.json"
    rows = {item["name"]: item for item in json.loads(record.read_text())} if record.exists() else {}
    for name in options.names or SHRUNK:
        folder = options.home / (name.replace(" ", "_").replace(",", "") + data)
        rows[name] = run(name, folder, on_cifar10(options.cifar10) if data else recipe)
        rows[name]["command"] = f"python -m benchmarks.family runs/family {'--cifar10 cifar ' * bool(data)}{name!r}"
        record.write_text(json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
    print("| family | accuracy | minutes | parameters | MACs |\n|---|---|---|---|---|")
    for item in sorted(rows.values(), key=lambda item: -item["accuracy"]):
        numbers = f"{item['seconds'] / 60:.1f} | {item['parameters'] / 1e6:.2f} M | {item['macs'] / 1e6:.0f} M"
        print(f"| {item['name']} | {item['accuracy']:.1%} | {numbers} |")


if __name__ == "__main__":
    main()
