"""Implementations compared by ``benchmarks.inference``: functions from a workload to a runner of images to logits.

Each function builds one implementation. If it cannot run (package not installed, model not available, internal error)
it raises an exception, which the benchmark reports with the results. All use as many threads as torch, images of one
fixed shape, and timm's weights where they can be loaded, so that logits can be compared.
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
class Workload:
    """One model at one batch size."""

    name: str  # in Vitreous
    reference: nn.Module  # timm's model: source of the weights and of the float32 logits
    images: Images
    folder: Path  # for exported models

    @classmethod
    def create(cls, name: str, batch: int, folder: Path) -> Workload:
        torch.manual_seed(0)
        return cls(name, timm.create_model(TIMM_NAMES[name]).eval(), torch.randn(batch, 3, 224, 224), folder)

    @property
    def operations(self) -> int:
        """Operations in one pass over all images; a multiply-add counts as two."""
        return 2 * vt.cost(self.name, batch=len(self.images)).macs

    def vit_size(self, library: str) -> ViTConfig:
        """Width, depth and heads for libraries that configure a ViT by them.

        Raises:
            ValueError: The model is not a ViT, so ``library`` does not have it.
        """
        family, size, *_ = self.name.split("_")
        if family != "vit":
            raise ValueError(f"{library} has no {self.name}")
        return SIZES[size]


def timm_eager(workload: Workload) -> Runner:
    return workload.reference


def timm_compiled(workload: Workload) -> Runner:
    return torch.compile(workload.reference, dynamic=False)


def transformers_eager(workload: Workload) -> Runner:
    import transformers

    if workload.name == "swin_tiny":
        model = transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=1000))
    else:
        size = workload.vit_size("transformers")
        config = transformers.ViTConfig(
            hidden_size=size.dim, num_hidden_layers=size.depth, num_attention_heads=size.num_heads,
            intermediate_size=4 * size.dim, num_labels=1000,
        )  # fmt: skip
        model = transformers.ViTForImageClassification(config)
    model.eval()
    return lambda images: model(images).logits


def torchvision_eager(workload: Workload) -> Runner:
    import torchvision

    if workload.name == "swin_tiny":
        return torchvision.models.swin_t().eval()
    size = workload.vit_size("torchvision")
    return torchvision.models.VisionTransformer(224, 16, size.depth, size.num_heads, size.dim, 4 * size.dim).eval()


def vit_pytorch_eager(workload: Workload) -> Runner:
    from vit_pytorch import ViT

    size = workload.vit_size("vit-pytorch")
    return ViT(
        image_size=224, patch_size=16, num_classes=1000, dim=size.dim, depth=size.depth, heads=size.num_heads,
        mlp_dim=4 * size.dim,
    ).eval()  # fmt: skip


def onnx_file(workload: Workload) -> Path:
    """Path of timm's model exported for this batch size, on first use."""
    path = workload.folder / f"{workload.name}_{len(workload.images)}.onnx"
    if not path.exists():
        torch.onnx.export(workload.reference, (workload.images,), path, dynamo=True, external_data=True, verbose=False)
    return path


def onnx_runtime(workload: Workload) -> Runner:
    import onnxruntime

    return onnx_session(onnxruntime, onnx_file(workload))


def onnx_runtime_int8(workload: Workload) -> Runner:
    """ONNX Runtime's dynamic quantization: weights per channel, activations per tensor at run time.

    Without VNNI weights have 7 bits, as its manual recommends: there pairs of products are accumulated in 16 bits.
    """
    import onnx
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    path = onnx_file(workload)
    quantized = path.with_suffix(".int8.onnx")
    model = onnx.load(path)
    del model.graph.value_info[:]  # the quantizer would reject these shapes as inconsistent
    logging.disable(logging.WARNING)  # it recommends preprocessing on every call
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


def openvino(workload: Workload) -> Runner:
    """OpenVINO in float32, set explicitly: where it defaults to bf16 it crashes on some machines."""
    from openvino import Core

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    model = Core().compile_model(onnx_file(workload), "CPU", settings)
    return lambda images: torch.from_numpy(model(images.numpy())[0])


def vitreous_eager(workload: Workload) -> vt.Backbone:
    model = vt.create_model(workload.name).eval()
    vt.load_weights(model, workload.reference.state_dict(), head="strict")
    return model


def vitreous_compiled(workload: Workload) -> Runner:
    return torch.compile(vitreous_eager(workload), dynamic=False)


def vitreous_accelerated(workload: Workload, precision: str) -> Runner:
    """``vt.accelerate`` without its cache.

    Raises:
        ValueError: No engine supports the precision, and it fell back to one that has its own row.
    """
    fast = vt.accelerate(vitreous_eager(workload), workload.images, precision=precision, fresh=True)
    if precision not in ("auto", fast.report.precision):
        candidates = [candidate for candidate in fast.report.candidates if candidate.precision == precision]
        raise ValueError("; ".join(f"{candidate.engine}: {candidate.reason}" for candidate in candidates))
    return fast


@dataclass(frozen=True)
class Implementation:
    """One row of the comparison; ``precision`` is that requested, ``same_weights`` whether it has timm's weights."""

    name: str
    build: Callable[[Workload], Runner]
    precision: str = "fp32"
    same_weights: bool = True


BASELINE = "timm"
IMPLEMENTATIONS = (
    Implementation(BASELINE, timm_eager),
    Implementation("timm, compiled", timm_compiled),
    Implementation("transformers", transformers_eager, same_weights=False),
    Implementation("torchvision", torchvision_eager, same_weights=False),
    Implementation("vit-pytorch", vit_pytorch_eager, same_weights=False),
    Implementation("ONNX Runtime", onnx_runtime),
    Implementation("ONNX Runtime int8", onnx_runtime_int8, "int8"),
    Implementation("OpenVINO", openvino),
    Implementation("vitreous", vitreous_eager),
    Implementation("vitreous, compiled", vitreous_compiled),
    *(Implementation(f"vitreous, {name}", partial(vitreous_accelerated, precision=name), name) for name in PRECISIONS),
)
