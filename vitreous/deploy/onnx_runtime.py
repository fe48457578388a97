"""The ONNX Runtime engine: the exported graph in float32 or with int8 matrix products."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import EngineUnavailable
from vitreous.deploy.formats import Run, check_onnx, run_onnx, silence_exporters, to_onnx
from vitreous.deploy.tracing import root_cause, trace
from vitreous.models.base import Model

if TYPE_CHECKING:
    import onnx


class OnnxModel(nn.Module):
    """Module around an ONNX Runtime session; it has no parameters, since the graph holds its own copy."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        return self.run(images.contiguous())


def to_onnx_runtime(model: Model, example: Tensor, *, threads: int | None = None, int8: bool = False) -> OnnxModel:
    """Export a model for any batch of images of the example's size; ``threads`` defaults to torch's current number.

    ``int8`` quantizes the matrix products: weights per output channel, activations dynamically.
    """
    try:
        check_onnx()
        plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        graph = to_onnx(trace(plain, (example.shape[2], example.shape[3])))
        graph = quantize(graph) if int8 else graph
        return OnnxModel(run_onnx(graph.SerializeToString(), threads))
    except Exception as error:  # exporters and runtimes raise many types; all mean that the engine is unavailable
        raise EngineUnavailable(f"ONNX Runtime cannot run it: {root_cause(error)}") from error


def quantize(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize weights to int8, or to 7 bits without VNNI, where pairs of products are added in 16 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, silence_exporters():
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            graph,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            reduce_range=not torch.cpu._is_vnni_supported(),
            weight_type=QuantType.QInt8,
        )
        return onnx.load(path)
