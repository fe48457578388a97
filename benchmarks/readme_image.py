"""The image of the README: the attribution maps of DeiT-Tiny for a photo of a cup.

    python -m benchmarks.readme_image     writes docs/images/explanation.jpg and explanation.json

Downloads DeiT-Tiny's weights, unless they are in the cache. The photo, docs/images/coffee.jpg, is by Rachel Michetti,
who dedicated it to the public domain (CC0).
"""

from __future__ import annotations

import io
import time
from pathlib import Path

import torch
from PIL import Image

import vitreous as vt
from benchmarks.record import write_record

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    torch.set_num_threads(1)
    model = vt.load("deit_tiny_16.in1k").eval()
    start = time.process_time()
    explanation = vt.explain(model, IMAGES / "coffee.jpg")
    seconds = time.process_time() - start
    buffer = io.BytesIO()
    explanation.draw().savefig(buffer, format="png", dpi=110)
    Image.open(buffer).convert("RGB").save(IMAGES / "explanation.jpg", quality=88, optimize=True)
    write_record(
        IMAGES / "explanation.json",
        "benchmarks.readme_image",
        0,
        best=[[name, round(share, 4)] for name, share in explanation.answer.best()],
        faithfulness={name: round(one.faithfulness, 3) for name, one in explanation.methods.items()},
        random_maps=[round(one.faithfulness, 3) for one in explanation.chance],
        cpu_seconds=round(seconds, 1),
    )
    print(explanation)


if __name__ == "__main__":
    main()
