"""A transformer block with norms, activation, LayerScale and residual sums fused into the linear kernels.

    x + γ₁ · proj(attend(qkv(norm(x))))        three calls: the norm is fused into qkv, γ₁ and the sum into proj
    x + γ₂ · fc2(gelu(fc1(norm(x))))           one call

The attention half and the MLP half are fused independently; a half that does not match the pattern, or that has a layer
outside the precision plan, runs unchanged.
"""

from __future__ import annotations

from typing import TypeGuard

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.deploy.native.convert import Converter
from vitreous.layers.attention import SelfAttention
from vitreous.layers.block import PreNormBlock
from vitreous.layers.mlp import Mlp
from vitreous.layers.norm import LayerScale
from vitreous.layers.position import Grid


class NativeBlock(nn.Module):
    """Inference version of the block called ``name`` in its model, with each half fused where possible."""

    def __init__(self, block: PreNormBlock, name: str, converter: Converter) -> None:
        super().__init__()
        self.block = block
        qkv, proj, fc1, fc2 = (f"{name}.{part}" for part in ("mixer.qkv", "mixer.proj", "mlp.fc1", "mlp.fc2"))
        mixer, mlp, norm1, norm2 = block.mixer, block.mlp, block.norm1, block.norm2
        self.fuses_mixer = self.fuses_mlp = False
        if converter.covers(qkv, proj) and type(mixer) is SelfAttention and is_layer_norm(norm1):
            self.fuses_mixer = True
            mixer.add_module("qkv", converter.linear(qkv, norm=norm1, reuse_output=True))
            mixer.add_module("attend", converter.attend(mixer.attend, reuse_output=True))
            mixer.add_module("proj", converter.linear(proj, scale=gamma(block.scale1)))
        if converter.covers(fc1, fc2) and type(mlp) is Mlp and is_exact_gelu(mlp.act) and is_layer_norm(norm2):
            self.fuses_mlp = True
            block.mlp = converter.mlp(fc1, fc2, norm=norm2, scale=gamma(block.scale2))

    def forward(self, x: Float[Tensor, "b n d"], grid: Grid | None, num_prefix: int = 0) -> Float[Tensor, "b n d"]:
        block, mixer = self.block, self.block.mixer
        if self.fuses_mixer:
            assert isinstance(mixer, SelfAttention)
            x = mixer.proj(mixer.attend_heads(x, grid, num_prefix), x)
        else:
            x = x + block.scale1(mixer(block.norm1(x), grid, num_prefix))
        if self.fuses_mlp:
            return block.mlp(x, x)
        return x + block.scale2(block.mlp(block.norm2(x)))


def is_layer_norm(norm: nn.Module) -> TypeGuard[nn.LayerNorm]:
    return type(norm) is nn.LayerNorm and len(norm.normalized_shape) == 1


def is_exact_gelu(act: nn.Module) -> bool:
    return type(act) is nn.GELU and act.approximate == "none"


def gamma(scale: nn.Module) -> Tensor | None:
    return scale.gamma if isinstance(scale, LayerScale) else None
