"""vitreous embed"""

from __future__ import annotations

import base64
import importlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.cli.arguments import Architecture, Images, Weights
from vitreous.cli.display import err, out, shortened, table
from vitreous.cli.image_paths import fingerprint, make_predictor, report_skipped
from vitreous.cli.resumable import remove_journal, run_resumable
from vitreous.data.image_files import find_images, printable
from vitreous.deploy.neighbors import Neighbor, duplicates, nearest_neighbors
from vitreous.deploy.predictor import Predictor, Skipped
from vitreous.files import check_writable, write_atomically


def embed(
    weights: Weights,
    images: Images,
    output: Path = Path("embeddings.npy"),
    model: Architecture = None,
    nearest: int = 0,
    duplicate: float = 0.98,
    batch_size: int = 32,
) -> None:
    """Compute image embeddings: vectors of unit length, whose dot products are cosine similarities.

    Args:
        output: A .npy file, with file names in a .json beside it, or a .parquet file; the same command resumes it.
        nearest: Print this many nearest neighbors of each image and the likely duplicates; 0 prints none.
        duplicate: Cosine similarity from which a pair counts as a duplicate.
        batch_size: Images per batch.
    """
    if output.suffix not in (".npy", ".parquet"):
        raise ValueError(f"--output must end in .npy or .parquet, got {output}")
    if nearest < 0 or not -1 <= duplicate <= 1:
        raise ValueError(f"--nearest must be 0 or more and --duplicate in [-1, 1], got {nearest} and {duplicate}")
    if output.suffix == ".parquet":
        need_pyarrow()
    check_writable(output)
    paths = find_images(images)
    predictor = make_predictor(weights, model, batch_size=batch_size)
    run = {"weights": fingerprint(weights), "kind": "embed"}
    lines = run_resumable(paths, output, run, predictor.embed_many, as_line)
    good = [line for line in lines if "vector" in line]
    names, vectors = [line["file"] for line in good], decode_vectors([line["vector"] for line in good], predictor)
    save_vectors(output, names, vectors)
    remove_journal(output)
    err.print(f"{len(names):,} embeddings of dimension {vectors.shape[1]} written to {output}", markup=False)
    report_skipped({line["file"]: line["skipped"] for line in lines if "skipped" in line}, len(lines))
    if nearest:
        show_neighbors(names, nearest_neighbors(vectors, nearest))
        show_duplicates(names, duplicates(vectors, duplicate), duplicate)


def as_line(path: Path, one: NDArray[np.float32] | Skipped) -> dict[str, Any]:
    return {"file": printable(path)} | (
        {"skipped": one.reason} if isinstance(one, Skipped) else {"vector": encode_vector(one)}
    )


def encode_vector(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()


def decode_vectors(packed: list[str], predictor: Predictor) -> NDArray[np.float32]:
    rows = [np.frombuffer(base64.b64decode(text), dtype="<f4") for text in packed]
    return np.stack(rows) if rows else np.zeros((0, predictor.model.dims[-1]), dtype=np.float32)


def save_vectors(output: Path, names: list[str], vectors: NDArray[np.float32]) -> None:
    if output.suffix == ".npy":
        content = io.BytesIO()
        np.save(content, vectors)
        write_atomically(output.with_suffix(".json"), json.dumps(names, ensure_ascii=False, indent=0).encode())
        write_atomically(output, content.getvalue())
        return
    pyarrow, parquet = need_pyarrow()
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), vectors.shape[1])
    sheet = pyarrow.table({"file": names, "vector": column})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(sheet, sink)
    write_atomically(output, sink.getvalue().to_pybytes())


def need_pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            "Parquet output needs pyarrow: pip install 'vitreous[parquet]', or choose a .npy output"
        ) from None


def show_neighbors(names: list[str], neighbors: list[list[Neighbor]]) -> None:
    rows = [
        (shortened(name) if rank == 0 else "", shortened(names[one.index]), f"{one.similarity:.3f}")
        for name, others in zip(names, neighbors, strict=True)
        for rank, one in enumerate(others)
    ]
    out.print(table("Nearest neighbors", ("image", "neighbor", "cosine similarity"), rows, left=2))


def show_duplicates(names: list[str], pairs: list[tuple[int, int, float]], threshold: float) -> None:
    if not pairs:
        out.print(f"No pair of images has a cosine similarity of {threshold} or more.")
        return
    rows = [(shortened(names[a]), shortened(names[b]), f"{similarity:.3f}") for a, b, similarity in pairs[:50]]
    out.print(table(f"Likely duplicates: {len(pairs):,}", ("image", "duplicate", "cosine similarity"), rows, left=2))
