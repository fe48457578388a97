"""ViT as Google's JAX code names it, in the ``.npz`` files of the paper, of "How to train your ViT?" and of big_vision.

JAX keeps a matrix as (in, out), filters as (y, x, in, out), and in attention heads apart: (in, heads, width of a head)
for queries, keys and values, (heads, width of a head, out) behind them. big_vision may put all blocks into one array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from einops import rearrange
from torch import Tensor

from vitreous.weights.keymaps import KeyMap, Name, Translation

BLOCK = "Transformer/encoderblock_{i}"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_(0|1)"
STACKED = re.compile(r"(.*Transformer/encoderblock)/(.*)")
#: From layers to their biases: what a layer's own numbers are called.
NORM, MATRIX = {"weight": "scale", "bias": "bias"}, {"weight": "kernel", "bias": "bias"}


def google_names() -> tuple[tuple[str, Name], ...]:
    rows: list[tuple[str, Name]] = [
        ("class_token", "cls"),
        ("position.table", "(Transformer/posembed_input/)?pos_embedding"),
    ]
    for ours, theirs, parts in (
        ("stem.proj", "embedding", MATRIX),
        ("blocks.{i}.norm1", f"{BLOCK}/LayerNorm_0", NORM),
        ("blocks.{i}.mixer.proj", f"{ATTENTION}/out", MATRIX),
        ("blocks.{i}.norm2", f"{BLOCK}/LayerNorm_(1|2)", NORM),
        ("blocks.{i}.mlp.fc1", f"{BLOCK}/MlpBlock_(0|3)/Dense_0", MATRIX),
        ("blocks.{i}.mlp.fc2", f"{BLOCK}/MlpBlock_(0|3)/Dense_1", MATRIX),
        ("norm", "Transformer/encoder_norm", NORM),
        ("head", "head", MATRIX),
    ):
        rows += [(f"{ours}.{mine}", f"{theirs}/{other}") for mine, other in parts.items()]
    for mine, other in MATRIX.items():
        rows.append(
            (f"blocks.{{i}}.mixer.qkv.{mine}", tuple(f"{ATTENTION}/{p}/{other}" for p in ("query", "key", "value")))
        )
    return tuple(rows)


@dataclass(frozen=True)
class JaxKeyMap(KeyMap):
    def compile(self, name: str) -> re.Pattern[str]:
        """Training's own files have the weights beside the optimizer's memory, those with text beside that."""
        return super().compile(f"((opt/)?target/|params/(img/)?)?{name}")

    def translate(self, theirs: Mapping[str, Tensor]) -> Translation:
        """A head that stands on a hidden layer (``pre_logits``), which our ViT does not have, means nothing without."""
        result = super().translate(apart(theirs))
        if any("pre_logits/" in name for name in result.unused):
            for name in [name for name in result.tensors if name.startswith("head.")]:
                del result.tensors[name]
                result.unused.append(result.origin.pop(name))
            result.notes.append("its head stands on a hidden layer (pre_logits) that ViT has not: both left out")
        return result

    def as_ours(self, name: str, tensor: Tensor) -> Tensor:
        if ".mixer.qkv." in name and tensor.ndim == 3:
            return rearrange(tensor, "(three d) h k -> (three h k) d", three=3)
        if ".mixer.proj.weight" in name and tensor.ndim == 3:
            return rearrange(tensor, "h k d -> d (h k)")
        if ".mixer." in name:
            return tensor.flatten()
        if name == "stem.proj.weight" and tensor.ndim == 4:
            return rearrange(tensor, "y x c d -> d c y x")
        if name == "position.table" and tensor.ndim == 2:
            return tensor[None]
        return tensor.mT if tensor.ndim == 2 else tensor


def apart(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks in one array, one under the other, as one each."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        found = STACKED.fullmatch(name)
        parts = (
            {f"{found[1]}_{index}/{found[2]}": block for index, block in enumerate(tensor)}
            if found and tensor.ndim
            else {}
        )
        tensors |= parts or {name: tensor}
    return tensors


GOOGLE = JaxKeyMap("Google's JAX", google_names(), unused=("pre_logits/(kernel|bias)", "(opt/)?state/{rest}"))
