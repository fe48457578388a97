"""ONNX Runtime as an engine: the model as a graph that another library runs, in float32 or with int8 products."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.engine import Unfit
from vitreous.deploy.formats import Run, check_onnx, quietly, run_onnx, to_onnx
from vitreous.deploy.tracing import root_cause, trace
from vitreous.models.base import Model

if TYPE_CHECKING:
    import onnx


class OnnxModel(nn.Module):
    """Torch tensors in and out, ONNX Runtime in between; without parameters, since the graph has its own copy."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        return self.run(images.contiguous())


def prepare(model: Model, example: Tensor, *, threads: int | None = None, int8: bool = False) -> OnnxModel:
    """The model for any batch of images of the example's size, on as many threads as torch has now.

    ``int8`` quantizes the weights of all matrix products, per channel, and their inputs as they come.
    """
    try:
        check_onnx()
        plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        graph = to_onnx(trace(plain, (example.shape[2], example.shape[3])))
        graph = quantized(graph) if int8 else graph
        return OnnxModel(run_onnx(graph.SerializeToString(), threads))
    except Exception as error:  # exporters and runtimes raise many kinds; each means that this engine is out
        raise Unfit(f"ONNX Runtime cannot run it: {root_cause(error)}") from error


def quantized(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Without VNNI the processor adds pairs of products in 16 bits, which overflow unless weights have only 7."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, quietly():
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
