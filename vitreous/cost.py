"""Analytical model cost: parameters, multiply-accumulates (MACs), and activations saved for the backward pass.

A forward pass on the meta device, without computation, gives the input shape of every layer, and each type of layer has
a formula. Verified against torch's FLOP counter and the tensors that autograd saves, to the byte with torch 2.15 on a
CPU. Not included are activations saved by rotary position embeddings (some 7 % of a ViT), windows and cross-covariance
(up to 20 %), deformable attention (some 25 %), weight standardization and squeeze-and-excitation, apart from those of
their matrix products.

    Linear        MACs  tokens · in · out           saves  its input
    Conv2d        MACs  outputs · in · kernel       saves  its input
    Attend        MACs  h · n · m · (k + v)         saves  q, k, v and one value per query and head (fused)
    … if sparse                                     saves  also outputs, mask and indices of each group
    Performer     MACs  h · n · r · 2 (k + v)       saves  q, k, v and three values per token, feature and head
    LayerNorm                                       saves  its input, mean and std per token
    BatchNorm, GroupNorm                            saves  its input, mean and std per channel or group
    … over a whole image                            saves  also the normalized values, before γ
    GELU, LayerScale, AvgPool2d                     saves  its input
    ReLU                                            saves  its output
    StarReLU                                        saves  the rectified input and its square
    MaxPool2d                                       saves  its input and the index of each maximum
    SiLU as a gate                                  saves  its input and its output
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.layers.attention import Attend
from vitreous.layers.mlp import StarReLU
from vitreous.layers.norm import ImageNorm, LayerScale
from vitreous.layers.patch import Whiten
from vitreous.layers.performer import LinearAttend, PositiveFeatures
from vitreous.layers.sparse import SparseAttention
from vitreous.models import find_config
from vitreous.models.base import Config, Model
from vitreous.samples import Inputs
from vitreous.spec import Size, pair

Precision = Literal["fp32", "bf16", "fp16"]
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
PARTS = ("stem", "mixer", "mlp", "norm", "head", "other")
#: The component of a module by a name in its path; downsampling layers between stages count as stem.
PART_OF = {"stem": "stem", "downsample": "stem", "mixer": "mixer", "mlp": "mlp"}

#: Bytes per parameter when training with AdamW: value, gradient and two moments in float32, plus a low-precision copy
#: of the value in mixed precision.
ADAMW_BYTES = {"fp32": 16, "bf16": 18, "fp16": 18}


@dataclass
class ComponentCost:
    """The cost of one component, such as all MLPs."""

    parameters: int = 0
    macs: int = 0
    activation_bytes: int = 0


@dataclass
class Cost:
    """The cost of a forward pass of ``batch`` images, and the memory of its saved activations.

    All bytes and MACs are of the whole batch; the properties sum over the components in ``parts``.
    """

    name: str
    image_size: Size
    batch: int
    precision: Precision
    num_tokens: int
    depth: int
    stride: Size  # pixels per token
    parts: dict[str, ComponentCost] = field(default_factory=lambda: {name: ComponentCost() for name in PARTS})
    attention_bytes: int = 0  # of all attention matrices, if stored (explicit softmax, recording)
    block_bytes: list[int] = field(default_factory=list)  # activations saved by each block
    block_input_bytes: int = 0
    meta_model: Model = field(kw_only=True, repr=False)  # the model on the meta device
    module_macs: Counter[nn.Module] = field(default_factory=Counter, repr=False)  # of every layer of meta_model

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts.values())

    @property
    def macs(self) -> int:
        return sum(part.macs for part in self.parts.values())

    @property
    def activation_bytes(self) -> int:
        """Activations saved between forward and backward pass, with fused attention."""
        return sum(part.activation_bytes for part in self.parts.values())

    @property
    def checkpointed_bytes(self) -> int:
        """Saved activations with checkpointing: the input of every block, and all activations of one block."""
        return self.activation_bytes - sum(self.block_bytes) + self.block_input_bytes + max(self.block_bytes)

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and AdamW's state."""
        return self.parameters * ADAMW_BYTES[self.precision]

    def training_bytes(self, *, checkpointing: bool = False) -> int:
        """Return the bytes of state and saved activations, optionally with activation checkpointing."""
        return self.state_bytes + (self.checkpointed_bytes if checkpointing else self.activation_bytes)

    @cached_property
    def quadratic_macs(self) -> int:
        """MACs of attention products that are quadratic in the number of tokens."""
        return sum(self.module_macs[module] for module in quadratic_attention(self.meta_model))

    @property
    def crossover_tokens(self) -> float:
        """Number of tokens at which the quadratic part (∝ n²) equals the rest (∝ n); infinite without such a part."""
        if not self.quadratic_macs:
            return math.inf
        return self.num_tokens * (self.macs - self.quadratic_macs) / self.quadratic_macs


def cost(
    model: str | Config | Model,
    image_size: int | Size | None = None,
    *,
    batch: int = 1,
    precision: Precision = "fp32",
    **overrides: Any,
) -> Cost:
    """Compute the cost of a model analytically, without allocating weights or activations.

    Args:
        model: Name, config or instance of a model.
        image_size: Image size; by default the model's.
        batch: Batch size.
        precision: Precision of activations and, for mixed precision, of the weights used in computation.
        overrides: Config fields to change, if ``model`` is a name or a config.

    Returns:
        Parameters, MACs and bytes, in total and by component.

    >>> cost("vit_base_16", image_size=384).macs / 1e9
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if precision not in BYTES:
        raise ValueError(f"precision must be one of {', '.join(BYTES)}, got {precision!r}")
    name = model if isinstance(model, str) else type(model).__name__.removesuffix("Config")
    if isinstance(model, Model):
        meta_model = copy.deepcopy(model).to("meta")
        size = pair(model.config.image_size if image_size is None else image_size, "image_size")
    else:
        config = find_config(model).override(**overrides)
        size = pair(config.image_size if image_size is None else image_size, "image_size")
        with torch.device("meta"):
            meta_model = config.override(image_size=size).build()
    meta_model.train()
    for norm in meta_model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()  # in training it refuses a single value per channel, as a small image may have
    images = torch.empty(batch, meta_model.config.num_channels, *size, device="meta")
    empty = Cost(name, size, batch, precision, 0, len(meta_model.blocks), meta_model.strides[-1], meta_model=meta_model)
    return CostMeter(empty).measure(images)


class CostMeter:
    """Evaluate every layer's formula during one forward pass and sum up the cost."""

    def __init__(self, result: Cost) -> None:
        self.model = result.meta_model
        self.cost = result
        self.bytes_per_value = BYTES[result.precision]
        self.module_locations = locate_modules(result.meta_model)
        self.counted: set[int] = set()  # storages counted so far
        self.outside: set[int] = set()  # storages saved by layers outside the blocks
        self.kept_alive: list[Tensor] = []  # so that no storage id is reused

    def measure(self, images: Tensor) -> Cost:
        for module, (part, _) in self.module_locations.items():
            self.cost.parts[part].parameters += sum(p.numel() for p in module.parameters(recurse=False))
        self.cost.block_bytes = [0] * self.cost.depth
        with self.hooked():
            self.model.outputs(Inputs(images))
        self.cost.num_tokens = self.model.features(images).tokens.shape[1]
        return self.cost

    @contextmanager
    def hooked(self) -> Iterator[None]:
        hooks = []
        for module in self.module_locations:
            for kind, formula in FORMULAS.items():
                if isinstance(module, kind):
                    hooks.append(module.register_forward_hook(self.hook(formula), with_kwargs=True))
        hooks += [block.register_forward_pre_hook(self.enter_block) for block in self.model.blocks]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def hook(self, formula: Formula) -> Callable[..., None]:
        def run(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            macs, saved, extra_bytes = formula(module, args, output)
            if not output.requires_grad:
                saved, extra_bytes = (), 0
            part, block = self.module_locations[module]
            self.cost.parts[part].macs += macs
            self.cost.module_macs[module] += macs
            if isinstance(module, Attend):
                self.cost.attention_bytes += math.prod(args[0].shape[:-1]) * args[1].shape[-2] * self.bytes_per_value
            if block is None:
                self.outside |= {tensor.untyped_storage()._cdata for tensor in saved}
            size = sum(self.new_bytes(tensor) for tensor in saved) + extra_bytes
            self.cost.parts[part].activation_bytes += size
            if block is not None:
                self.cost.block_bytes[block] += size

        return run

    def enter_block(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].untyped_storage()._cdata not in self.outside:
            self.cost.block_input_bytes += args[0].numel() * self.bytes_per_value

    def new_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of a tensor's storage, or 0 if counted before: views share and retain the whole storage."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.counted:
            return 0
        self.counted.add(storage._cdata)
        self.kept_alive.append(tensor)
        return storage.nbytes() // tensor.element_size() * self.bytes_per_value


class LayerCost(NamedTuple):
    """The cost of one call of a layer; storages in ``saved`` are counted once, even if several layers save them."""

    macs: int = 0
    saved: tuple[Tensor, ...] = ()
    extra_bytes: int = 0


Formula = Callable[[nn.Module, tuple[Any, ...], Tensor], LayerCost]


def linear(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    assert isinstance(module, nn.Linear)
    return LayerCost(output.numel() * module.in_features, (args[0],))


def conv(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    assert isinstance(module, nn.Conv2d)
    return LayerCost(output.numel() * module.weight[0].numel(), (args[0],))


def whiten(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    assert isinstance(module, Whiten)
    return LayerCost(output.numel() // 2 * 4 * module.num_channels)


def layer_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    return LayerCost(saved=(args[0],), extra_bytes=2 * 4 * math.prod(args[0].shape[:-1]))


def saves_input(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    return LayerCost(saved=(args[0],))


def batch_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    return LayerCost(saved=(args[0],), extra_bytes=2 * 4 * args[0].shape[1])


def group_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    assert isinstance(module, nn.GroupNorm)
    return LayerCost(saved=(args[0],), extra_bytes=2 * 4 * args[0].shape[0] * module.num_groups)


def image_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    """In addition to GroupNorm's cost: the normalized tokens, before scaling."""
    return LayerCost(saved=(torch.empty_like(output),))


def star_relu(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    """Save the rectified input and its square."""
    return LayerCost(saved=(torch.empty_like(output), torch.empty_like(output)))


def max_pool(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    return LayerCost(saved=(args[0],), extra_bytes=8 * output.numel())


def saves_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    return LayerCost(saved=(output,))


def attend(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    q, k, v = args
    return LayerCost((output.numel() + q.numel()) * k.shape[-2], (q, k, v), 4 * math.prod(q.shape[:-1]))


def positive_features(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    return LayerCost(output.numel() * args[0].shape[-1], extra_bytes=4 * args[0].numel())


def linear_attend(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    q, k, v = args
    averages = v.new_empty(*v.shape[:-2], k.shape[-1], v.shape[-1])
    saved = v.flatten(0, -3), averages  # matrix products flatten batch and heads, copying if necessary
    return LayerCost((q.numel() + k.numel()) * v.shape[-1], saved, 4 * (q.numel() + 2 * k.numel()))


def sparse_attention(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    """In addition to its Attend's cost: the groups' outputs before reordering, the mask, and the indices."""
    assert isinstance(module, SparseAttention)
    x, grid, *_ = args
    groups = module.groups(grid, x.device)
    outputs = x.new_empty(x.shape[0], groups.queries.numel(), x.shape[2])
    indices = groups.queries.numel() + groups.keys.numel() + groups.positions.numel()
    return LayerCost(saved=(outputs,), extra_bytes=4 * groups.mask.numel() + 8 * indices)


def gate(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> LayerCost:
    """Save input and output: the product with the gate saves the output as well."""
    return LayerCost(saved=(args[0], output))


FORMULAS: dict[type[nn.Module], Formula] = {
    nn.Linear: linear,
    nn.Conv2d: conv,
    Whiten: whiten,
    nn.LayerNorm: layer_norm,
    nn.BatchNorm2d: batch_norm,
    nn.GroupNorm: group_norm,
    ImageNorm: image_norm,
    nn.GELU: saves_input,
    StarReLU: star_relu,
    nn.ReLU: saves_output,
    nn.MaxPool2d: max_pool,
    nn.AvgPool2d: saves_input,
    LayerScale: saves_input,
    Attend: attend,
    PositiveFeatures: positive_features,
    LinearAttend: linear_attend,
    SparseAttention: sparse_attention,
    nn.SiLU: gate,
}


def quadratic_attention(model: Model) -> set[nn.Module]:
    """Find attention modules that are quadratic in the number of tokens, by comparing two image sizes.

    If both sides double, their MACs grow sixteenfold. Attention within windows or neighborhoods, over channels, or with
    a fixed number of keys or queries grows fourfold.
    """
    small, large = (attention_macs(model, side) for side in (64, 128))
    return {module for module, macs in small.items() if large[module] > 8 * macs}


def attention_macs(model: Model, side: int) -> Counter[nn.Module]:
    """Count the MACs of every Attend for an image with ``side`` × ``side`` tokens in the coarsest feature map."""
    macs: Counter[nn.Module] = Counter()

    def add(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        macs[module] += attend(module, args, output).macs

    hooks = [module.register_forward_hook(add) for module in model.modules() if isinstance(module, Attend)]
    try:
        model.features(
            torch.empty(1, model.config.num_channels, *(side * stride for stride in model.strides[-1]), device="meta")
        )
    finally:
        for hook in hooks:
            hook.remove()
    return macs


def locate_modules(model: Model) -> dict[nn.Module, tuple[str, int | None]]:
    """Return the component of every module, and the index of its block (None outside the blocks)."""
    blocks = {id(module): index for index, block in enumerate(model.blocks) for module in block.modules()}
    found = {}
    for path, module in model.named_modules():
        words = path.split(".")
        part = next((PART_OF[word] for word in words if word in PART_OF), None)
        if part is None:
            part = "norm" if isinstance(module, nn.LayerNorm) else "head" if words[0] in model.head_names else "other"
        found[module] = (part, blocks.get(id(module)))
    return found
