"""The kinds of file a model is exported to: how each is written, run again, and asked what it says about itself."""

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
LARGEST_ONNX = 2**31 - 2**24  # bytes of weights; a protocol buffer ends at 2 GiB


@dataclass(frozen=True)
class Format:
    """``check`` says what is missing here to write or run such a file, before any work is done."""

    suffix: str
    check: Callable[[], None]
    write: Callable[[ExportedProgram, Path, Metadata], None]
    run: Callable[[Path], Run]
    read: Callable[[Path], Metadata]


def check_onnx() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX needs {' and '.join(missing)}; pip install 'vitreous[export]' brings what is missing")


def write_onnx(program: ExportedProgram, path: Path, metadata: Metadata) -> None:
    model = to_onnx(program, metadata.get("output", "logits"))
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def to_onnx(program: ExportedProgram, output: str = "logits") -> onnx.ModelProto:
    """Its input is called ``images``, its output ``logits`` or ``masks``; sizes that may differ have names that say
    how."""
    num_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
    if num_bytes > LARGEST_ONNX:
        raise ValueError(f"an ONNX file holds at most 2 GB, the weights are {num_bytes / 1e9:.1f} GB; export to .pt2")
    with quietly():
        exported = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["images"], output_names=[output])
    assert exported is not None
    model: onnx.ModelProto = exported.model_proto
    del model.graph.value_info[:]  # shapes in between: large, needed by nobody, and quantization stumbles over them
    name_axes(model.graph)
    refuse_other_sides(model.graph)
    return model


def name_axes(graph: onnx.GraphProto) -> None:
    """``batch``, ``16*rows`` and ``16*columns`` where the tracer says s34, 16*s30 and 16*s18."""
    images = graph.input[0].type.tensor_type.shape.dim
    for dim, name in zip((images[0], images[2], images[3]), ("batch", "rows", "columns"), strict=True):
        *factor, symbol = dim.dim_param.split("*")
        if symbol:
            dim.dim_param = "*".join([*factor, name])
    graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"


def refuse_other_sides(graph: onnx.GraphProto) -> None:
    """A runtime takes any number for ``16*rows``, and would cut off what is over; a detour through blocks of 16×16
    pixels changes nothing else, and makes it say so."""
    import onnx

    height = graph.input[0].type.tensor_type.shape.dim[2].dim_param
    if not height:
        return
    side = int(height.split("*")[0])
    for node in graph.node:
        node.input[:] = ["checked_images" if name == "images" else name for name in node.input]
    detour = [("SpaceToDepth", "images", "blocks"), ("DepthToSpace", "blocks", "checked_images")]
    for place, (kind, given, made) in enumerate(detour):
        name = f"height_and_width_must_be_multiples_of_{side}"
        graph.node.insert(place, onnx.helper.make_node(kind, [given], [made], name=f"{name}_{place}", blocksize=side))


@contextmanager
def quietly() -> Iterator[None]:
    """Without the exporters' remarks on their own insides: what matters is whether the result agrees."""
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
            "a .pt2 package is compiled, and there is no C++ compiler here; install g++ or clang, or export to .onnx"
        )


def write_package(program: ExportedProgram, path: Path, metadata: Metadata) -> None:
    # where the user has inputs checked, a single image is none too few
    settings = {"aot_inductor.metadata": dict(metadata), "aot_inductor.check_lowerbound": False}
    with quietly():
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
    """The format that was asked for, or the one that the ending of the file's name stands for."""
    if name is not None:
        if name not in FORMATS:
            raise ValueError(f"there is no format {name!r}{did_you_mean(str(name), FORMATS)}")
        if path.suffix != FORMATS[name].suffix:
            raise ValueError(f"a file of format {name!r} ends in {FORMATS[name].suffix}, got {path.name}")
        return name
    suffixes = {one.suffix: name for name, one in FORMATS.items()}
    if path.suffix not in suffixes:
        raise ValueError(f"{path.name} should end in .onnx or .pt2{did_you_mean(path.suffix, suffixes)}")
    return suffixes[path.suffix]
