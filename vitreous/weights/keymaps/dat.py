"""DAT as the original repository names it. Norms stand in one list there, two for every block."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from vitreous.models.dat import DATConfig
from vitreous.weights.keymaps import KeyMap, Name, Translation


class DATKeyMap(KeyMap):
    """Their convolutions of 1×1 are our matrices, and their tables for moving points lie the other way round."""

    def translate(self, theirs: Mapping[str, Tensor]) -> Translation:
        return super().translate({name: reshaped(name, tensor) for name, tensor in theirs.items()})


def reshaped(name: str, tensor: Tensor) -> Tensor:
    if re.search(r"attns\.\d+\.(proj_\w+|conv_offset\.3)\.weight$", name):
        return tensor.flatten(1)
    if name.endswith("rpe_table"):
        return tensor.flatten(1).mT[None]
    return tensor


OURS, THEIRS = "stages.{i}.blocks.{j}", "stages.{i}.attns.{j}"
BLOCK: tuple[tuple[str, Name], ...] = (
    (f"{OURS}.mixer.qkv.{{p}}", f"{THEIRS}.proj_qkv.{{p}}"),
    (f"{OURS}.mixer.relative.table", f"{THEIRS}.(relative_position_bias_table|rpe_table)"),
    (f"{OURS}.mixer.points.conv.{{p}}", f"{THEIRS}.conv_offset.0.{{p}}"),
    (f"{OURS}.mixer.points.norm.{{p}}", f"{THEIRS}.conv_offset.1.norm.{{p}}"),
    (f"{OURS}.mixer.points.proj.{{p}}", f"{THEIRS}.conv_offset.3.{{p}}"),
    (f"{OURS}.mixer.q.{{p}}", f"{THEIRS}.proj_q.{{p}}"),
    (f"{OURS}.mixer.kv.{{p}}", (f"{THEIRS}.proj_k.{{p}}", f"{THEIRS}.proj_v.{{p}}")),
    (f"{OURS}.mixer.proj.{{p}}", f"{THEIRS}.proj_out.{{p}}"),
    (f"{OURS}.mlp.fc1.{{p}}", "stages.{i}.mlps.{j}.chunk.linear1.{p}"),
    (f"{OURS}.mlp.fc2.{{p}}", "stages.{i}.mlps.{j}.chunk.linear2.{p}"),
)


def keymaps(config: DATConfig) -> tuple[KeyMap, ...]:
    norms = [
        (
            f"stages.{stage}.blocks.{block}.norm{which + 1}.{{p}}",
            f"stages.{stage}.layer_norms.{2 * block + which}.norm.{{p}}",
        )
        for stage, depth in enumerate(config.depths)
        for block in range(depth)
        for which in (0, 1)
    ]
    downsamples = [("patch_proj", 0), *((f"down_projs.{stage - 1}", stage) for stage in range(1, len(config.depths)))]
    between = [
        (f"stages.{stage}.downsample.{ours}.{{p}}", f"{name}.{theirs}.{{p}}")
        for name, stage in downsamples
        for ours, theirs in (("conv", "0"), ("norm", "1.norm"))
    ]
    last = [("norm.{p}", "cls_norm.norm.{p}"), ("head.{p}", "cls_head.{p}")]
    unused = (f"{THEIRS}.(relative_position_index|attn_mask)",)
    return (DATKeyMap("the original", (*BLOCK, *norms, *between, *last), unused=unused),)
