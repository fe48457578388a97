"""Published ImageNet-1k accuracies with training data, test resolution and source.

timm's numbers were measured by its author on the public weights, all in the same way: ``results-imagenet.csv`` of
huggingface/pytorch-image-models at commit 0173a13. The other numbers are from the paper or the repository's README of
the models' authors. DAT and the original CoAtNet are missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Data = Literal["in1k", "in1k, distilled", "in21k"]


@dataclass(frozen=True)
class Accuracy:
    """Top-1 accuracy on the 50,000 validation images, in percent."""

    model: str
    top1: float
    pixels: int
    data: Data  # training data; in21k: ImageNet with 12,000 to 22,000 classes, then fine-tuned on 1,000
    source: str  # timm, the authors' repository, or their paper


def rows(data: Data, pixels: int, source: str, **top1: float) -> list[Accuracy]:
    return [Accuracy(model, number, pixels, data, source) for model, number in top1.items()]


PUBLISHED_ACCURACY: list[Accuracy] = [
    *rows("in1k", 224, "timm", deit_tiny_16=72.172, deit_small_16=79.844, deit_base_16=81.992),
    *rows("in1k", 224, "timm", vit_small_16=78.846, vit_base_16=79.154),
    *rows("in1k", 224, "timm", resnet18=69.760, resnet50=76.130, resnet101=77.376, resnet152=78.322),
    *rows("in1k", 224, "timm", swin_tiny=81.376, swin_small=83.208, swin_base=83.606),
    *rows("in1k", 224, "timm", pvt_v2_b0=70.660, pvt_v2_b1=78.702, pvt_v2_b2=82.086, pvt_v2_b2_li=82.194),
    *rows("in1k", 224, "timm", pvt_v2_b3=83.120, pvt_v2_b4=83.710, pvt_v2_b5=83.742),
    *rows("in1k", 224, "timm", xcit_nano_12_16=69.962, xcit_tiny_12_16=77.140, xcit_small_12_16=81.970),
    *rows("in1k", 224, "timm", xcit_tiny_24_16=79.448, xcit_small_24_16=82.580, xcit_medium_24_16=82.640),
    *rows("in1k", 224, "timm", xcit_large_24_16=82.900, xcit_nano_12_8=73.916, xcit_tiny_12_8=79.688),
    *rows("in1k", 224, "timm", xcit_small_12_8=83.332, xcit_tiny_24_8=81.892, xcit_small_24_8=83.834),
    *rows("in1k", 224, "timm", xcit_medium_24_8=83.748, xcit_large_24_8=84.394),
    *rows("in1k", 224, "timm", coatnet_nano_rw=81.698, coatnet_0_rw=82.390, coatnet_1_rw=83.596),
    *rows("in1k", 224, "timm", poolformer_s12=77.234, poolformer_s24=80.296, poolformer_s36=81.430),
    *rows("in1k", 224, "timm", poolformer_m36=82.102, poolformer_m48=82.482),
    *rows("in1k", 224, "timm", poolformerv2_s12=78.004, poolformerv2_s24=80.748, poolformerv2_s36=81.568),
    *rows("in1k", 224, "timm", poolformerv2_m36=82.216, poolformerv2_m48=82.620),
    *rows("in1k", 224, "timm", convformer_s18=82.986, convformer_s36=84.060, convformer_m36=84.494),
    *rows("in1k", 224, "timm", convformer_b36=84.818, caformer_s18=83.656, caformer_s36=84.508),
    *rows("in1k", 224, "timm", caformer_m36=85.232, caformer_b36=85.506),
    *rows("in1k", 256, "timm", mobilevit_xxs=68.932, mobilevit_xs=74.636, mobilevit_s=78.312),
    *rows("in1k", 288, "timm", convnext_atto=77.008, convnext_femto=78.716, convnext_pico=80.414),
    *rows("in1k", 288, "timm", convnext_nano=81.482, convnext_tiny=82.698, convnext_small=83.700),
    *rows("in1k", 288, "timm", convnext_base=84.428, convnext_large=84.846),
    *rows("in1k", 384, "timm", swin_base_384=84.476),
    *rows("in1k", 224, "arXiv 2102.12122", pvt_tiny=75.1, pvt_small=79.8, pvt_medium=81.2, pvt_large=81.7),
    *rows("in1k", 224, "microsoft/CvT", cvt_13=81.6, cvt_21=82.5),
    *rows("in1k", 256, "apple/ml-fastvit", fastvit_t8=76.2, fastvit_t12=79.3, fastvit_s12=79.9, fastvit_sa12=80.9),
    *rows("in1k", 256, "apple/ml-fastvit", fastvit_sa24=82.7, fastvit_sa36=83.6, fastvit_ma36=83.9),
    *rows("in1k, distilled", 224, "timm", deit_tiny_distilled_16=74.500, deit_small_distilled_16=81.218),
    *rows("in1k, distilled", 224, "timm", deit_base_distilled_16=83.386, xcit_nano_12_16=72.310),
    *rows("in1k, distilled", 224, "timm", xcit_tiny_12_16=78.574, xcit_small_12_16=83.328, xcit_tiny_24_16=80.454),
    *rows("in1k, distilled", 224, "timm", xcit_small_24_16=83.874, xcit_medium_24_16=84.286, xcit_large_24_16=84.916),
    *rows("in1k, distilled", 224, "timm", efficientformer_l1=80.498, efficientformer_l3=82.550),
    *rows("in1k, distilled", 224, "timm", efficientformer_l7=83.382),
    *rows("in1k, distilled", 256, "apple/ml-fastvit", fastvit_t8=77.2, fastvit_t12=80.3, fastvit_s12=81.1),
    *rows("in1k, distilled", 256, "apple/ml-fastvit", fastvit_sa12=81.9, fastvit_sa24=83.4, fastvit_sa36=84.2),
    *rows("in1k, distilled", 256, "apple/ml-fastvit", fastvit_ma36=84.6),
    *rows("in21k", 224, "timm", vit_tiny_16=75.454, vit_small_16=81.384, vit_base_16=84.532, vit_large_16=85.834),
    *rows("in21k", 224, "timm", vit_small_32=75.994, vit_base_32=80.716, vit_base_8=85.798),
    *rows("in21k", 224, "timm", vit_tiny_r_s16=71.798, vit_small_r26_s32=81.864, vit_large_r50_s32=84.422),
    *rows("in21k", 224, "timm", swin_tiny=80.968, swin_small=83.298, swin_base=85.272, swin_large=86.312),
    *rows("in21k", 224, "timm", coatnet_2_rw=86.568, convformer_s18=83.738, convformer_s36=85.414),
    *rows("in21k", 224, "timm", convformer_m36=86.146, convformer_b36=86.998, caformer_s18=84.076),
    *rows("in21k", 224, "timm", caformer_s36=85.792, caformer_m36=86.594, caformer_b36=87.422),
    *rows("in21k", 288, "timm", convnext_small=85.330, convnext_base=86.274, convnext_large=87.026),
    *rows("in21k", 288, "timm", convnext_xlarge=87.330),
    *rows("in21k", 384, "timm", vit_base_r50_s16=84.976, swin_base_384=86.438, swin_large_384=87.132),
    *rows("in1k", 384, "timm", convformer_s18=84.402, convformer_s36=85.378, convformer_m36=85.580),
    *rows("in1k", 384, "timm", convformer_b36=85.742, caformer_s18=85.026, caformer_s36=85.740),
    *rows("in1k", 384, "timm", caformer_m36=86.166, caformer_b36=86.408, deit_base_16=83.106),
    *rows("in1k, distilled", 224, "timm", xcit_nano_12_8=76.332, xcit_tiny_12_8=81.212, xcit_small_12_8=84.236),
    *rows("in1k, distilled", 224, "timm", xcit_tiny_24_8=82.566, xcit_small_24_8=84.868, xcit_medium_24_8=85.074),
    *rows("in1k, distilled", 224, "timm", xcit_large_24_8=85.402),
    *rows("in1k, distilled", 384, "timm", xcit_nano_12_16=75.458, xcit_tiny_12_16=80.938, xcit_small_12_16=84.712),
    *rows("in1k, distilled", 384, "timm", xcit_tiny_24_16=82.570, xcit_small_24_16=85.090, xcit_medium_24_16=85.422),
    *rows("in1k, distilled", 384, "timm", xcit_large_24_16=85.754, xcit_nano_12_8=77.820, xcit_tiny_12_8=82.388),
    *rows("in1k, distilled", 384, "timm", xcit_small_12_8=85.078, xcit_tiny_24_8=83.746, xcit_small_24_8=85.554),
    *rows("in1k, distilled", 384, "timm", xcit_medium_24_8=85.816, xcit_large_24_8=85.996),
    *rows("in1k, distilled", 384, "timm", deit_base_distilled_16=85.426),
    *rows("in21k", 288, "timm", convnext_nano=82.862, convnext_tiny=84.450),
    *rows("in21k", 384, "timm", vit_tiny_16=78.424, vit_small_16=83.802, vit_base_16=85.996, vit_large_16=87.084),
    *rows("in21k", 384, "timm", vit_small_32=80.486, vit_base_32=83.350, vit_large_32=81.510),
    *rows("in21k", 384, "timm", vit_tiny_r_s16=75.962, vit_small_r26_s32=84.048, vit_large_r50_s32=86.182),
    *rows("in21k", 384, "timm", convnext_tiny=85.122, convnext_small=86.182, convnext_base=86.796),
    *rows("in21k", 384, "timm", convnext_large=87.472, convnext_xlarge=87.752, convformer_s18=84.998),
    *rows("in21k", 384, "timm", convformer_s36=86.378, convformer_m36=86.892, convformer_b36=87.602),
    *rows("in21k", 384, "timm", caformer_s18=85.414, caformer_s36=86.856, caformer_m36=87.450, caformer_b36=88.058),
    *rows("in21k", 384, "microsoft/CvT", cvt_13=83.3, cvt_21=84.9, cvt_w24=87.6),
]


def best(model: str) -> Accuracy | None:
    """Return the highest published accuracy of a model, regardless of the training data; None if there is none."""
    return max((row for row in PUBLISHED_ACCURACY if row.model == model), key=lambda row: row.top1, default=None)
