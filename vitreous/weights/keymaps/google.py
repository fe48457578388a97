"""Key map for ViT weights of Google's JAX code: ``.npz`` files of the paper, "How to train your ViT?" and big_vision.

JAX stores matrices as (in, out) and filters as (y, x, in, out). Attention heads have their own axis: (in, heads, head
width) for query, key and value, (heads, head width, out) for the output projection. big_vision may stack all blocks in
one array.
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
#: Parameter names within a layer: native name → JAX name.
NORM, LINEAR = {"weight": "scale", "bias": "bias"}, {"weight": "kernel", "bias": "bias"}


def google_names() -> tuple[tuple[str, Name], ...]:
    rows: list[tuple[str, Name]] = [
        ("class_token", "cls"),
        ("position.table", "(Transformer/posembed_input/)?pos_embedding"),
    ]
    for native, foreign, parts in (
        ("stem.proj", "embedding", LINEAR),
        ("blocks.{i}.norm1", f"{BLOCK}/LayerNorm_0", NORM),
        ("blocks.{i}.mixer.proj", f"{ATTENTION}/out", LINEAR),
        ("blocks.{i}.norm2", f"{BLOCK}/LayerNorm_(1|2)", NORM),
        ("blocks.{i}.mlp.fc1", f"{BLOCK}/MlpBlock_(0|3)/Dense_0", LINEAR),
        ("blocks.{i}.mlp.fc2", f"{BLOCK}/MlpBlock_(0|3)/Dense_1", LINEAR),
        ("norm", "Transformer/encoder_norm", NORM),
        ("head", "head", LINEAR),
    ):
        rows += [(f"{native}.{parameter}", f"{foreign}/{jax_name}") for parameter, jax_name in parts.items()]
    for parameter, jax_name in LINEAR.items():
        qkv = tuple(f"{ATTENTION}/{part}/{jax_name}" for part in ("query", "key", "value"))
        rows.append((f"blocks.{{i}}.mixer.qkv.{parameter}", qkv))
    return tuple(rows)


@dataclass(frozen=True)
class JaxKeyMap(KeyMap):
    def compile(self, name: str) -> re.Pattern[str]:
        """Accept the prefixes of training checkpoints, which hold optimizer states, and of image-text models."""
        return super().compile(f"((opt/)?target/|params/(img/)?)?{name}")

    def translate(self, foreign: Mapping[str, Tensor]) -> Translation:
        """Leave out a classifier that follows a hidden layer (``pre_logits``), which Vitreous's ViT does not have."""
        result = super().translate(split_stacked_blocks(foreign))
        if any("pre_logits/" in name for name in result.unused):
            for name in [name for name in result.tensors if name.startswith("head.")]:
                del result.tensors[name]
                result.unused.append(result.origin.pop(name))
            result.notes.append(
                "left out: a hidden layer (pre_logits), which this ViT does not have, and the classifier after it"
            )
        return result

    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
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


def split_stacked_blocks(foreign: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split arrays that stack all blocks into one array per block."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in foreign.items():
        found = STACKED.fullmatch(name)
        parts = (
            {f"{found[1]}_{index}/{found[2]}": block for index, block in enumerate(tensor)}
            if found and tensor.ndim
            else {}
        )
        tensors |= parts or {name: tensor}
    return tensors


GOOGLE = JaxKeyMap("Google's JAX", google_names(), unused=("pre_logits/(kernel|bias)", "(opt/)?state/{rest}"))
