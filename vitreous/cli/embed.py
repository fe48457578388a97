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

from vitreous.cli.image_paths import Images, Weights, fingerprint, make_predictor, report_skipped
from vitreous.cli.resumable import forget, journalled
from vitreous.cli.show import err, out, shortened, table
from vitreous.data.image_files import find_images, printable
from vitreous.deploy.neighbors import Neighbor, duplicates, nearest_neighbors
from vitreous.deploy.predictor import Predictor, Skipped
from vitreous.files import need_room, write_atomically


def embed(
    weights: Weights,
    images: Images,
    output: Path = Path("embeddings.npy"),
    model: str | None = None,
    nearest: int = 0,
    duplicate: float = 0.98,
    batch_size: int = 32,
) -> None:
    """Turn images into vectors of length 1, whose products are similarities.

    Args:
        weights: A weights file of ours, one of others with --model, or the name of a public weight.
        images: Files, folders, or patterns in quotes.
        output: A .npy file (names go to a .json beside it) or a .parquet file; an interrupted run goes on when it
            is started again.
        model: The model of a foreign weights file, such as deit_tiny_16.
        nearest: Show this many most similar images of each, and pairs that are likely duplicates.
        duplicate: The similarity from which a pair counts as a duplicate.
        batch_size: Images at a time.
    """
    if output.suffix not in (".npy", ".parquet"):
        raise ValueError(f"--output must end in .npy or .parquet, got {output}")
    if nearest < 0 or not -1 <= duplicate <= 1:
        raise ValueError(f"--nearest must be 0 or more and --duplicate a cosine, got {nearest} and {duplicate}")
    if output.suffix == ".parquet":
        need_pyarrow()
    need_room(output)
    paths = find_images(images)
    predictor = make_predictor(weights, model, batch_size=batch_size)
    run = {"weights": fingerprint(weights), "kind": "embed"}
    lines = journalled(paths, output, run, predictor.embed_many, as_line)
    good = [line for line in lines if "vector" in line]
    names, vectors = [line["file"] for line in good], unpack([line["vector"] for line in good], predictor)
    save_vectors(output, names, vectors)
    forget(output)
    err.print(f"{len(names):,} vectors of {vectors.shape[1]} numbers in {output}", markup=False)
    report_skipped({line["file"]: line["skipped"] for line in lines if "skipped" in line}, len(lines))
    if nearest:
        show_neighbors(names, nearest_neighbors(vectors, nearest))
        show_duplicates(names, duplicates(vectors, duplicate), duplicate)


def as_line(path: Path, one: NDArray[np.float32] | Skipped) -> dict[str, Any]:
    return {"file": printable(path)} | ({"skipped": one.reason} if isinstance(one, Skipped) else {"vector": pack(one)})


def pack(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()


def unpack(packed: list[str], predictor: Predictor) -> NDArray[np.float32]:
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
        raise ValueError("parquet files need pyarrow: pip install 'vitreous[parquet]', or write .npy") from None


def show_neighbors(names: list[str], neighbors: list[list[Neighbor]]) -> None:
    rows = [
        (shortened(name) if rank == 0 else "", shortened(names[one.index]), f"{one.similarity:.3f}")
        for name, others in zip(names, neighbors, strict=True)
        for rank, one in enumerate(others)
    ]
    out.print(table("Most similar images", ("image", "nearest", "cosine"), rows, left=2))


def show_duplicates(names: list[str], pairs: list[tuple[int, int, float]], threshold: float) -> None:
    if not pairs:
        out.print(f"No two images are more alike than {threshold}.")
        return
    rows = [(shortened(names[a]), shortened(names[b]), f"{similarity:.3f}") for a, b, similarity in pairs[:50]]
    out.print(table(f"Likely duplicates: {len(pairs):,}", ("image", "and", "cosine"), rows, left=2))
