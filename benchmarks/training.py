"""Collect finished training runs in one record and print them as a Markdown table.

    python -m benchmarks.training docs/records/cifar10.json "conv-stem ViT=runs/cifar10_vit" …

Existing rows of the file are kept, unless a run of the same name is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = (
    *("command", "commit", "accuracy", "images", "seconds", "parameters"),
    *("train_images", "valid_images", "steps", "seed", "threads"),
)


def row(name: str, run: Path) -> dict[str, Any]:
    result = json.loads((run / "result.json").read_text())
    return {"name": name, **{key: result[key] for key in KEPT}}


def main() -> None:
    record, *runs = sys.argv[1:]
    path = Path(record)
    rows = {item["name"]: item for item in json.loads(path.read_text())} if path.exists() else {}
    for argument in runs:
        name, folder = argument.split("=")
        rows[name] = row(name, Path(folder))
    path.write_text(json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
    print("| run | accuracy | parameters | images seen | minutes |\n|---|---|---|---|---|")
    for item in rows.values():
        numbers = f"{item['accuracy']:.2%} | {item['parameters']:,} | {item['images']:,} | {item['seconds'] / 60:.1f}"
        print(f"| {item['name']} | {numbers} |")


if __name__ == "__main__":
    main()
