"""Where each model comes from: its family and the paper to cite."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    family: str
    title: str
    authors: str
    year: int
    arxiv: str = ""

    def __str__(self) -> str:
        return f"{self.authors} {self.year}" + (f", arXiv {self.arxiv}" if self.arxiv else "")


def paper(family: str, title: str, authors: str, arxiv: str) -> Paper:
    return Paper(family, title, authors, 2000 + int(arxiv[:2]), arxiv)


_VIT = "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"

#: Patterns of model names; the first that matches counts.
PAPERS: dict[str, Paper] = {
    "vit_down_*": Paper("ViT with downsampling", "A ViT that halves its grid between layers", "Vitreous", 2026),
    "hybrid_resnet*": Paper("ResNet + encoder", "A ResNet's features and a transformer encoder", "Vitreous", 2026),
    "vit_*_r*_s*": paper("hybrid ViT", _VIT, "Dosovitskiy et al.", "2010.11929"),
    "vit_*": paper("ViT", _VIT, "Dosovitskiy et al.", "2010.11929"),
    "deit_*": paper(
        "DeiT",
        "Training data-efficient image transformers & distillation through attention",
        "Touvron et al.",
        "2012.12877",
    ),
    "dinov2_*": paper(
        "DINOv2", "DINOv2: Learning Robust Visual Features without Supervision", "Oquab et al.", "2304.07193"
    ),
    "resnet*": paper("ResNet", "Deep Residual Learning for Image Recognition", "He et al.", "1512.03385"),
    "swin_*": paper(
        "Swin", "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", "Liu et al.", "2103.14030"
    ),
    "dat_*": paper("DAT", "Vision Transformer with Deformable Attention", "Xia et al.", "2201.00520"),
    "pvt_v2_*": paper(
        "PVTv2", "PVT v2: Improved Baselines with Pyramid Vision Transformer", "Wang et al.", "2106.13797"
    ),
    "pvt_*": paper("PVT", "Pyramid Vision Transformer", "Wang et al.", "2102.12122"),
    "xcit_*": paper("XCiT", "XCiT: Cross-Covariance Image Transformers", "El-Nouby et al.", "2106.09681"),
    "cvt_*": paper("CvT", "CvT: Introducing Convolutions to Vision Transformers", "Wu et al.", "2103.15808"),
    "coatnet_*": paper(
        "CoAtNet", "CoAtNet: Marrying Convolution and Attention for All Data Sizes", "Dai et al.", "2106.04803"
    ),
    "convnext_*": paper("ConvNeXt", "A ConvNet for the 2020s", "Liu et al.", "2201.03545"),
    "mobilevit_*": paper(
        "MobileViT",
        "MobileViT: Light-weight, General-purpose, and Mobile-friendly Vision Transformer",
        "Mehta and Rastegari",
        "2110.02178",
    ),
    "efficientformer_*": paper(
        "EfficientFormer", "EfficientFormer: Vision Transformers at MobileNet Speed", "Li et al.", "2206.01191"
    ),
    "poolformer_*": paper("PoolFormer", "MetaFormer Is Actually What You Need for Vision", "Yu et al.", "2111.11418"),
    "poolformerv2_*": paper("PoolFormerV2", "MetaFormer Baselines for Vision", "Yu et al.", "2210.13452"),
    "convformer_*": paper("ConvFormer", "MetaFormer Baselines for Vision", "Yu et al.", "2210.13452"),
    "caformer_*": paper("CAFormer", "MetaFormer Baselines for Vision", "Yu et al.", "2210.13452"),
    "fastvit_*": paper(
        "FastViT",
        "FastViT: A Fast Hybrid Vision Transformer using Structural Reparameterization",
        "Vasu et al.",
        "2303.14189",
    ),
}


def paper_of(model: str) -> Paper:
    return next(found for pattern, found in PAPERS.items() if fnmatch.fnmatchcase(model, pattern))
