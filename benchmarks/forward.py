"""A forward pass of ours beside timm's, transformers' and torchvision's: eager, float32, same weights' shapes.

make bench
"""

from __future__ import annotations

import timm
import torch
import torchvision
import transformers

import vitreous as vt
from benchmarks.interleave import interleave, speed_up
from vitreous.models.vit import SIZES


def contestants(size: str) -> dict[str, torch.nn.Module]:
    config = SIZES[size]
    hf = transformers.ViTConfig(
        hidden_size=config.dim, num_attention_heads=config.num_heads, intermediate_size=4 * config.dim
    )
    models = {
        "timm": timm.create_model(f"vit_{size}_patch16_224"),
        "vitreous": vt.create_model(f"vit_{size}_16"),
        "transformers": transformers.ViTForImageClassification(hf),
        "torchvision": torchvision.models.VisionTransformer(
            224, 16, config.depth, config.num_heads, config.dim, 4 * config.dim
        ),
    }
    return {name: model.eval() for name, model in models.items()}


@torch.inference_mode()
def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, 224 pixels; times faster than timm")
    print(f"{'model':<14}{'batch':>6}  " + "".join(f"{name:>20}" for name in contestants("tiny")))
    for size in ("tiny", "small", "base"):
        models = contestants(size)
        for batch in (1, 8):
            images = torch.randn(batch, 3, 224, 224)
            seconds = interleave({name: lambda m=model, x=images: m(x) for name, model in models.items()})
            ratios = speed_up(seconds, "timm")
            cells = (f"{best:.2f} (median {median:.2f})" for best, median in ratios.values())
            print(f"vit_{size}_16".ljust(14) + f"{batch:>6}  " + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
