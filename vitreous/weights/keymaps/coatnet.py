"""Key map for CoAtNet weights of timm, with 1×1 convolutions for linear layers and qkv ordered by head."""

from __future__ import annotations

from dataclasses import dataclass

from einops import rearrange
from torch import Tensor

from vitreous.models.coatnet import CoAtNetConfig
from vitreous.weights.keymaps import KeyMap

BLOCK = "stages.{stage}.{i}"
CONV, ATTENTION = (f"stages.(?P<stage>[{numbers}]).blocks.{{i}}" for numbers in ("01", "23"))

NAMES = (
    ("stem.{rest}", "stem.{rest}"),
    *(
        (f"{BLOCK}.{native}.{{rest}}", f"{CONV}.{foreign}.{{rest}}")
        for native, foreign in (
            ("branch.norm", "pre_norm"),
            ("branch.expand", "conv1_1x1"),
            ("branch.norm1", "norm1"),
            ("branch.depthwise", "conv2_kxk"),
            ("branch.norm2", "norm2"),
            ("branch.squeeze", "(se|se_early)"),
            ("branch.project", "conv3_1x1"),
            ("shortcut.widen", "shortcut.expand"),
        )
    ),
    *(
        (f"{BLOCK}.{native}", f"{ATTENTION}.{foreign}")
        for native, foreign in (
            ("shortcut.{p}", "shortcut.expand.{p}"),
            ("norm1.{p}", "norm1.(norm.)?{p}"),
            ("mixer.qkv.{p}", "attn.qkv.{p}"),
            ("mixer.relative.table", "attn.rel_pos.relative_position_bias_table"),
            ("mixer.proj.{p}", "attn.proj.{p}"),
            ("scale1.gamma", "ls1.gamma"),
            ("norm2.{p}", "norm2.{p}"),
            ("mlp.fc1.{p}", "mlp.fc1.{p}"),
            ("mlp.fc2.{p}", "mlp.fc2.{p}"),
            ("scale2.gamma", "ls2.gamma"),
        )
    ),
    ("norm.{p}", "(norm|head.norm).{p}"),
    ("hidden.{p}", "head.pre_logits.fc.{p}"),
    ("head.{p}", "head.fc.{p}"),
)


@dataclass(frozen=True)
class ConvAttentionKeyMap(KeyMap):
    """Key map that flattens 1×1 convolutions to matrices and reorders qkv from heads first to q, k, v first."""

    head_dim: int = 32

    def to_native_layout(self, name: str, tensor: Tensor) -> Tensor:
        if not name.startswith(("stages.2.", "stages.3.")):
            return tensor
        if tensor.ndim == 4 and tensor.shape[2:] == (1, 1):
            tensor = tensor.flatten(1)
        if "qkv" in name and tensor.ndim and len(tensor) % (3 * self.head_dim) == 0:
            return rearrange(tensor, "(h three k) ... -> (three h k) ...", three=3, k=self.head_dim)
        return tensor


def keymaps(config: CoAtNetConfig) -> tuple[KeyMap, ...]:
    unused = (f"{ATTENTION}.attn.rel_pos.relative_position_index",)
    return (ConvAttentionKeyMap("timm", NAMES, unused=unused, head_dim=config.head_dim),)
