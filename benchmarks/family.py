"""Every family's shrunk configuration learns Shapes with one recipe: accuracy, time, parameters and MACs as a table.

    python -m benchmarks.family runs/family [NAME …]

Each run is a folder below the first argument; finished runs are read, interrupted ones go on. Writes
docs/figures/family.json and prints a Markdown table.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import vitreous as vt
from benchmarks.training import row
from vitreous.recipes.shapes_family import SHRUNK, recipe

RECORD = Path(__file__).parent.parent / "docs" / "figures" / "family.json"


def run(name: str, folder: Path) -> dict[str, Any]:
    config = SHRUNK[name].override(image_size=recipe.model.image_size)
    if not (folder / "result.json").exists():
        vt.train(replace(recipe, model=config), folder, resume=folder.exists())
    macs = vt.cost(config, num_classes=10).macs
    return row(name, folder) | {"macs": macs, "command": f"python -m benchmarks.family runs/family {name!r}"}


def main() -> None:
    home, *names = sys.argv[1:] or ["runs/family"]
    rows = {item["name"]: item for item in json.loads(RECORD.read_text())} if RECORD.exists() else {}
    for name in names or SHRUNK:
        rows[name] = run(name, Path(home) / name.replace(" ", "_").replace(",", ""))
        RECORD.write_text(json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
    print("| family | accuracy | minutes | parameters | MACs |\n|---|---|---|---|---|")
    for item in rows.values():
        numbers = f"{item['seconds'] / 60:.1f} | {item['parameters'] / 1e6:.2f} M | {item['macs'] / 1e6:.0f} M"
        print(f"| {item['name']} | {item['accuracy']:.1%} | {numbers} |")


if __name__ == "__main__":
    main()
