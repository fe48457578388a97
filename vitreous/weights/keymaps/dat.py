"""Key map for DAT weights of the original repository, which keeps the norms of a stage in one list, two per block."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from vitreous.models.dat import DATConfig
from vitreous.weights.keymaps import KeyMap, Name, Translation


class DATKeyMap(KeyMap):
    """Key map that flattens 1×1 convolutions to matrices and transposes the bias tables of deformable attention."""

    def translate(self, foreign: Mapping[str, Tensor]) -> Translation:
        return super().translate({name: reshape(name, tensor) for name, tensor in foreign.items()})


def reshape(name: str, tensor: Tensor) -> Tensor:
    if re.search(r"attns\.\d+\.(proj_\w+|conv_offset\.3)\.weight$", name):
        return tensor.flatten(1)
    if name.endswith("rpe_table"):
        return tensor.flatten(1).mT[None]
    return tensor


NATIVE, FOREIGN = "stages.{i}.blocks.{j}", "stages.{i}.attns.{j}"
BLOCK: tuple[tuple[str, Name], ...] = (
    (f"{NATIVE}.mixer.qkv.{{p}}", f"{FOREIGN}.proj_qkv.{{p}}"),
    (f"{NATIVE}.mixer.relative.table", f"{FOREIGN}.(relative_position_bias_table|rpe_table)"),
    (f"{NATIVE}.mixer.points.conv.{{p}}", f"{FOREIGN}.conv_offset.0.{{p}}"),
    (f"{NATIVE}.mixer.points.norm.{{p}}", f"{FOREIGN}.conv_offset.1.norm.{{p}}"),
    (f"{NATIVE}.mixer.points.proj.{{p}}", f"{FOREIGN}.conv_offset.3.{{p}}"),
    (f"{NATIVE}.mixer.q.{{p}}", f"{FOREIGN}.proj_q.{{p}}"),
    (f"{NATIVE}.mixer.kv.{{p}}", (f"{FOREIGN}.proj_k.{{p}}", f"{FOREIGN}.proj_v.{{p}}")),
    (f"{NATIVE}.mixer.proj.{{p}}", f"{FOREIGN}.proj_out.{{p}}"),
    (f"{NATIVE}.mlp.fc1.{{p}}", "stages.{i}.mlps.{j}.chunk.linear1.{p}"),
    (f"{NATIVE}.mlp.fc2.{{p}}", "stages.{i}.mlps.{j}.chunk.linear2.{p}"),
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
    downsample_names = [
        (f"stages.{stage}.downsample.{native}.{{p}}", f"{name}.{foreign}.{{p}}")
        for name, stage in downsamples
        for native, foreign in (("conv", "0"), ("norm", "1.norm"))
    ]
    head = [("norm.{p}", "cls_norm.norm.{p}"), ("head.{p}", "cls_head.{p}")]
    unused = (f"{FOREIGN}.(relative_position_index|attn_mask)",)
    return (DATKeyMap("the original DAT", (*BLOCK, *norms, *downsample_names, *head), unused=unused),)
