"""Attention distance, entropy, rank and token norms of a real model on photos, by depth.

    python -m benchmarks.looking WEIGHTS FOLDER     writes docs/images/looking.png and looking.json

WEIGHTS are those of DeiT-Tiny, or of any model with --model; FOLDER contains photos. Values are means over the photos,
with one dot per head in the figure. Distances are between the centers of cells, in pixels of the model's input, without
the class token; entropy is in nats over all keys; a token is an outlier above three times the median norm.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import vitreous as vt
from benchmarks.record import write_record
from vitreous.data.image_files import find_images, open_image
from vitreous.draw.measures import layers_figure
from vitreous.explain.measures import head_similarity, outliers

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="deit_tiny_16", help="architecture of the weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = vt.load(options.weights, model=options.model).eval()
    prepare = vt.transforms(model)
    images = torch.stack([prepare(open_image(path)) for path in find_images([options.folder])])
    with vt.record(model, what=["weights", "norms"]) as trace, torch.no_grad():
        model(images)
    measures = {
        "distance in pixels": trace.mean_distance(),
        "entropy in nats": trace.entropy(),
        "effective rank": trace.effective_rank(),
    }
    heads = {title: {name: values.mean(dim=0) for name, values in by.items()} for title, by in measures.items()}
    similarity = head_similarity(list(trace.token_matrices().values())).mean(dim=0)
    rows = [
        {
            "block": name,
            **{title: [round(value, 3) for value in by[name].tolist()] for title, by in heads.items()},
            "median norm": trace.norms[name].median().item(),
            "largest norm over median": (trace.norms[name].amax(1) / trace.norms[name].median(1).values).mean().item(),
            "outliers": int(outliers(trace.norms[name]).sum()),
            "similarity of heads": similarity_within(similarity, index, len(heads["entropy in nats"][name])),
        }
        for index, name in enumerate(trace)
    ]
    print(
        f"{'block':10}{'distance':>10}{'entropy':>10}{'rank':>8}{'norm':>8}{'max/median':>12}{'outliers':>10}{'heads':>8}"
    )
    for row in rows:
        distance, entropy, rank = (sum(row[title]) / len(row[title]) for title in heads)
        print(
            f"{row['block']:10}{distance:>7.0f} px{entropy:>10.2f}{rank:>8.1f}{row['median norm']:>8.1f}"
            f"{row['largest norm over median']:>12.2f}{row['outliers']:>10}{row['similarity of heads']:>8.2f}"
        )
    layers_figure(heads).savefig(DOCS / "images" / "looking.png", dpi=130)
    write_record(DOCS / "images" / "looking.json", "benchmarks.looking", 0, photos=len(images), results=rows)


def similarity_within(similarity: torch.Tensor, layer: int, num_heads: int) -> float:
    """Mean cosine between two different heads of a layer; all layers have the same number."""
    block = similarity[layer * num_heads : (layer + 1) * num_heads, layer * num_heads : (layer + 1) * num_heads]
    return ((block.sum() - block.trace()) / (num_heads * (num_heads - 1))).item()


if __name__ == "__main__":
    main()
