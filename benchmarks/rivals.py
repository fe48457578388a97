"""Everybody who takes part in ``benchmarks.inference``: from a model's name to something that turns images to logits.

A function builds one contestant. Whatever stops it (a package that is not installed, a model it does not have, an
error of its own) is an exception, which the benchmark catches and reports beside the results. All compute with as
many threads as torch does, on images of one fixed shape, and timm's weights are given to everybody who can take them,
so that logits can be compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from jaxtyping import Float
from torch import Tensor, nn

import vitreous as vt
from vitreous.machine import cpu_flags
from vitreous.models.vit import SIZES, ViTConfig

TIMM_NAMES = {f"vit_{size}_16": f"vit_{size}_patch16_224" for size in SIZES} | {
    "swin_tiny": "swin_tiny_patch4_window7_224"
}
PRECISIONS = ("fp32", "bf16", "int16", "int8", "auto")

Images = Float[Tensor, "b 3 224 224"]
Runner = Callable[[Images], Float[Tensor, "b 1000"]]


@dataclass(frozen=True)
class Course:
    """What all contestants are to run: one model at one batch size."""

    name: str  # ours
    reference: nn.Module  # timm's model: its weights, and its logits in float32
    images: Images
    folder: Path  # for exported models

    @classmethod
    def lay(cls, name: str, batch: int, folder: Path) -> Course:
        torch.manual_seed(0)
        return cls(name, timm.create_model(TIMM_NAMES[name]).eval(), torch.randn(batch, 3, 224, 224), folder)

    @property
    def operations(self) -> int:
        """In one pass over all images; a multiply-add counts as two."""
        return 2 * vt.cost(self.name, batch=len(self.images)).macs

    def vit_size(self, library: str) -> ViTConfig:
        """Width, depth and heads, for a library that wants them; anything but a ViT it does not have."""
        family, size, *_ = self.name.split("_")
        if family != "vit":
            raise ValueError(f"{library} has no {self.name}")
        return SIZES[size]


def timm_eager(course: Course) -> Runner:
    return course.reference


def timm_compiled(course: Course) -> Runner:
    return torch.compile(course.reference, dynamic=False)


def transformers_eager(course: Course) -> Runner:
    import transformers

    if course.name == "swin_tiny":
        model = transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=1000))
    else:
        size = course.vit_size("transformers")
        config = transformers.ViTConfig(
            hidden_size=size.dim, num_hidden_layers=size.depth, num_attention_heads=size.num_heads,
            intermediate_size=4 * size.dim, num_labels=1000,
        )  # fmt: skip
        model = transformers.ViTForImageClassification(config)
    model.eval()
    return lambda images: model(images).logits


def torchvision_eager(course: Course) -> Runner:
    import torchvision

    if course.name == "swin_tiny":
        return torchvision.models.swin_t().eval()
    size = course.vit_size("torchvision")
    return torchvision.models.VisionTransformer(224, 16, size.depth, size.num_heads, size.dim, 4 * size.dim).eval()


def vit_pytorch_eager(course: Course) -> Runner:
    from vit_pytorch import ViT

    size = course.vit_size("vit-pytorch")
    return ViT(
        image_size=224, patch_size=16, num_classes=1000, dim=size.dim, depth=size.depth, heads=size.num_heads,
        mlp_dim=4 * size.dim,
    ).eval()  # fmt: skip


def onnx_file(course: Course) -> Path:
    """timm's model for this batch size, exported when it is first asked for."""
    path = course.folder / f"{course.name}_{len(course.images)}.onnx"
    if not path.exists():
        torch.onnx.export(course.reference, (course.images,), path, dynamo=True, external_data=True, verbose=False)
    return path


def onnx_runtime(course: Course) -> Runner:
    import onnxruntime

    return onnx_session(onnxruntime, onnx_file(course))


def onnx_runtime_int8(course: Course) -> Runner:
    """ONNX Runtime's dynamic scheme: weights per channel, activations per tensor as they come.

    Without VNNI weights have 7 bits, as its manual advises: there pairs of products are added in 16.
    """
    import onnx
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    path = onnx_file(course)
    quantized = path.with_suffix(".int8.onnx")
    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes that the quantizer would find contradictory
    logging.disable(logging.WARNING)  # it recommends preprocessing at every call
    try:
        quantize_dynamic(model, quantized, per_channel=True, reduce_range="avx512_vnni" not in cpu_flags())
    finally:
        logging.disable(logging.NOTSET)
    return onnx_session(onnxruntime, quantized)


def onnx_session(onnxruntime: Any, path: Path) -> Runner:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def openvino(course: Course) -> Runner:
    """In float32, said expressly: where OpenVINO picks bf16 by itself it ends the process on some machines."""
    from openvino import Core

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    model = Core().compile_model(onnx_file(course), "CPU", settings)
    return lambda images: torch.from_numpy(model(images.numpy())[0])


def ours(course: Course) -> vt.Backbone:
    model = vt.create_model(course.name).eval()
    vt.load_weights(model, course.reference.state_dict(), head="strict")
    return model


def ours_compiled(course: Course) -> Runner:
    return torch.compile(ours(course), dynamic=False)


def ours_accelerated(course: Course, precision: str) -> Runner:
    """Chosen anew, whatever an earlier run remembers; refused where it fell back to another precision, which has a row
    of its own."""
    fast = vt.accelerate(ours(course), course.images, precision=precision, fresh=True, tell=lambda words: None)
    if precision not in ("auto", fast.report.precision):
        tried = [way for way in fast.report.tried if way.precision == precision]
        raise ValueError("; ".join(f"{way.engine}: {way.reason}" for way in tried))
    return fast


@dataclass(frozen=True)
class Contestant:
    """Who takes part, in which precision as far as one knows beforehand, and whether with timm's weights."""

    name: str
    build: Callable[[Course], Runner]
    precision: str = "fp32"
    same_weights: bool = True


BASELINE = "timm"
CONTESTANTS = (
    Contestant(BASELINE, timm_eager),
    Contestant("timm, compiled", timm_compiled),
    Contestant("transformers", transformers_eager, same_weights=False),
    Contestant("torchvision", torchvision_eager, same_weights=False),
    Contestant("vit-pytorch", vit_pytorch_eager, same_weights=False),
    Contestant("ONNX Runtime", onnx_runtime),
    Contestant("ONNX Runtime int8", onnx_runtime_int8, "int8"),
    Contestant("OpenVINO", openvino),
    Contestant("vitreous", ours),
    Contestant("vitreous, compiled", ours_compiled),
    *(Contestant(f"vitreous, {name}", partial(ours_accelerated, precision=name), name) for name in PRECISIONS),
)
