"""Time and peak memory of large data: a table of a million rows, large photos, many classes.

    python -m benchmarks.large_data     writes docs/records/large_data.json

Every case runs in a process of its own, whose peak memory includes Python and PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.record import write_record

ROOT = Path(__file__).parents[1]
ROWS, PHOTOS, DISTINCT, CLASSES = 1_000_000, 2_000, 40, 50_000

TABLE = """
import vitreous as vt
splits = vt.open_data("table.csv")
assert len(splits.train) + len(splits.valid) == {rows}
"""
INSPECT = """
from vitreous.cli import main
assert main(["data", "inspect", "photos"]) == 0
"""
MANY_CLASSES = """
import numpy as np
import vitreous as vt

class Numbered:
    classes = [f"c{{index}}" for index in range({classes})]
    targets = [index % {classes} for index in range(2 * {classes})]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return np.full((16, 16, 3), index * 37 % 255, np.uint8), self.targets[index]

model = vt.create_model("vit_tiny_16", image_size=16, patch_size=4, dim=32, depth=1, num_heads=1)
result = vt.train(model, Numbered(), "run", config=vt.TrainConfig(steps=10, batch_size=64))
assert len(result.meter) == {classes}
"""
MEASURED = """
import json, resource, time
start = time.perf_counter()
{code}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({{"seconds": round(time.perf_counter() - start, 1), "megabytes": used.ru_maxrss // 1024}}))
"""


def write_photos(folder: Path) -> None:
    """Write photos of 12 megapixels: links to a few distinct ones, since only their number and size matter here."""
    draws = np.random.default_rng(0)
    for index in range(DISTINCT):
        small = Image.fromarray(draws.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        small.resize((4000, 3000)).save(folder / f"{index}.jpg", quality=85)
    for index in range(PHOTOS):
        path = folder / "photos" / "ab"[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / f"{index % DISTINCT}.jpg", path)


def write_table(folder: Path) -> None:
    rows = (f"photos/{'ab'[i % 2]}/{i % PHOTOS}.jpg,class{i % 1000}\n" for i in range(ROWS))
    with (folder / "table.csv").open("w") as file:
        file.writelines(["path,label\n", *rows])


def measure(code: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-c", MEASURED.format(code=code)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder)
        write_table(folder)
        results = {
            "table of 1,000,000 rows": measure(TABLE.format(rows=ROWS), folder),
            "inspect 2,000 photos of 12 megapixels": measure(INSPECT, folder),
            "train on 50,000 images of 50,000 classes": measure(MANY_CLASSES.format(classes=CLASSES), folder),
        }
    print(json.dumps(results, indent=1))
    write_record(ROOT / "docs" / "records" / "large_data.json", "benchmarks.large_data", 0, results=results)


if __name__ == "__main__":
    main()
