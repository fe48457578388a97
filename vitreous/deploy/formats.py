"""Export formats: how each file is written, run, and its metadata read."""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitreous.machine import cpp_compiler
from vitreous.options import did_you_mean

if TYPE_CHECKING:
    import onnx

Run = Callable[[Tensor], Tensor]
Metadata = Mapping[str, str]

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MAX_ONNX_BYTES = 2**31 - 2**24  # of weights; a protocol buffer is limited to 2 GiB


@dataclass(frozen=True)
class Format:
    """A file format; ``check`` raises if packages or compilers that it needs are missing."""

    suffix: str
    check: Callable[[], None]
    write: Callable[[ExportedProgram, Path, Metadata], None]
    run: Callable[[Path], Run]
    read: Callable[[Path], Metadata]


def check_onnx() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX needs {' and '.join(missing)}; install with pip install 'vitreous[export]'")


def write_onnx(program: ExportedProgram, path: Path, metadata: Metadata) -> None:
    model = to_onnx(program, metadata.get("output", "logits"))
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def to_onnx(program: ExportedProgram, output: str = "logits") -> onnx.ModelProto:
    """Convert a program to ONNX with the input ``images``, an output such as ``logits``, and named dynamic axes."""
    num_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
    if num_bytes > MAX_ONNX_BYTES:
        raise ValueError(f"an ONNX file holds at most 2 GB, got {num_bytes / 1e9:.1f} GB of weights; export to .pt2")
    with silence_exporters():
        exported = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["images"], output_names=[output])
    assert exported is not None
    model: onnx.ModelProto = exported.model_proto
    del model.graph.value_info[:]  # intermediate shapes: large, optional, and quantization fails on them
    name_axes(model.graph)
    enforce_side_multiples(model.graph)
    return model


def name_axes(graph: onnx.GraphProto) -> None:
    """Name the dynamic axes ``batch``, ``16*rows`` and ``16*columns`` instead of s34, 16*s30 and 16*s18."""
    images = graph.input[0].type.tensor_type.shape.dim
    for dim, name in zip((images[0], images[2], images[3]), ("batch", "rows", "columns"), strict=True):
        *factor, symbol = dim.dim_param.split("*")
        if symbol:
            dim.dim_param = "*".join([*factor, name])
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"


def enforce_side_multiples(graph: onnx.GraphProto) -> None:
    """Make the graph reject a height or width that is not a multiple of the stride.

    A runtime accepts any number for ``16*rows`` and would crop silently; SpaceToDepth followed by its inverse changes
    nothing else, but fails on other sizes with a node name that states the reason.
    """
    import onnx

    height = graph.input[0].type.tensor_type.shape.dim[2].dim_param
    if not height:
        return
    side = int(height.split("*")[0])
    for node in graph.node:
        node.input[:] = ["checked_images" if name == "images" else name for name in node.input]
    round_trip = [("SpaceToDepth", "images", "blocks"), ("DepthToSpace", "blocks", "checked_images")]
    for index, (op, given, made) in enumerate(round_trip):
        name = f"height_and_width_must_be_multiples_of_{side}"
        graph.node.insert(index, onnx.helper.make_node(op, [given], [made], name=f"{name}_{index}", blocksize=side))


@contextmanager
def silence_exporters() -> Iterator[None]:
    """Suppress warnings and log output of the exporters; the result is verified instead."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def run_onnx(source: Path | bytes, threads: int | None = None) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    given = source if isinstance(source, bytes) else os.fspath(source)
    session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.detach().numpy()})[0])

    return run


def read_onnx(path: Path) -> Metadata:
    import onnx

    return {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}


def check_compiler() -> None:
    if cpp_compiler() is None:
        raise ValueError(
            "a .pt2 package needs a C++ compiler, and none was found; install g++ or clang, or export to .onnx"
        )


def write_package(program: ExportedProgram, path: Path, metadata: Metadata) -> None:
    # the traced batch is 2, but a single image must pass AOTInductor's input checks too
    settings = {"aot_inductor.metadata": dict(metadata), "aot_inductor.check_lowerbound": False}
    with silence_exporters():
        torch._inductor.aoti_compile_and_package(program, package_path=os.fspath(path), inductor_configs=settings)


def run_package(path: Path) -> Run:
    return torch._inductor.aoti_load_package(os.fspath(path))


def read_package(path: Path) -> Metadata:
    return torch._inductor.aoti_load_package(os.fspath(path)).get_metadata()


FORMATS = {
    "onnx": Format(".onnx", check_onnx, write_onnx, run_onnx, read_onnx),
    "aoti": Format(".pt2", check_compiler, write_package, run_package, read_package),
}


def format_of(path: Path, name: str | None = None) -> str:
    """Return the format called ``name``, or else the one of the file's suffix."""
    if name is not None:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}{did_you_mean(str(name), FORMATS)}")
        if path.suffix != FORMATS[name].suffix:
            raise ValueError(f"a file of format {name!r} ends in {FORMATS[name].suffix}, got {path.name}")
        return name
    suffixes = {one.suffix: name for name, one in FORMATS.items()}
    if path.suffix not in suffixes:
        raise ValueError(f"{path.name} should end in .onnx or .pt2{did_you_mean(path.suffix, suffixes)}")
    return suffixes[path.suffix]
