"""What a model costs, from formulas: parameters, multiply-accumulates, and bytes held for the backward pass.

A forward pass on the meta device, where nothing is computed, tells the shape that reaches every layer; each kind of
layer has its formula here. Checked against torch's FLOP counter and against the tensors that autograd really saves,
to the byte with torch 2.15 on a CPU. Not counted is what rotary positions save (some 7 % of a ViT), windows and
cross-covariance (up to 20 %), deformable attention (some 25 %), standardized filters and squeeze-and-excitation beside
their products.

    Linear        MACs  tokens · in · out           saves  its input
    Conv2d        MACs  outputs · in · kernel       saves  its input
    Attend        MACs  h · n · m · (k + v)         saves  q, k, v and a number per query and head (fused)
    … if sparse                                     saves  also its outputs, mask and indices, group by group
    Performer     MACs  h · n · r · 2 (k + v)       saves  q, k, v and three numbers per token, feature and head
    LayerNorm                                       saves  its input, mean and deviation per token
    BatchNorm, GroupNorm                            saves  its input, mean and deviation per channel or group
    … over a whole image                          saves  also what is normalized, before γ
    GELU, LayerScale, AvgPool2d                     saves  its input
    ReLU                                            saves  its output
    StarReLU                                        saves  what is left of its input, and the square of that
    MaxPool2d                                       saves  its input and where each maximum stood
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
#: What a name in a module's path says about it; the steps between stages count as stem.
PART_OF = {"stem": "stem", "downsample": "stem", "mixer": "mixer", "mlp": "mlp"}

#: Bytes a parameter needs while AdamW trains it: value, gradient and two moments in float32, and in mixed precision
#: a copy of the value to compute with.
ADAMW_BYTES = {"fp32": 16, "bf16": 18, "fp16": 18}


@dataclass
class Part:
    """One component's share."""

    parameters: int = 0
    macs: int = 0
    activation_bytes: int = 0


@dataclass
class Cost:
    """The cost of one forward pass of ``batch`` images, and of keeping what its backward pass needs."""

    name: str
    image_size: Size
    batch: int
    precision: Precision
    num_tokens: int
    depth: int
    stride: Size  # pixels of one token
    parts: dict[str, Part] = field(default_factory=lambda: {name: Part() for name in PARTS})
    attention_bytes: int = 0  # of all attention matrices, were they kept (explicit softmax, recording)
    block_bytes: list[int] = field(default_factory=list)  # activations saved by each block
    block_input_bytes: int = 0
    twin: Model = field(kw_only=True, repr=False)  # the model on the meta device
    module_macs: Counter[nn.Module] = field(default_factory=Counter, repr=False)  # of every layer of the twin

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts.values())

    @property
    def macs(self) -> int:
        return sum(part.macs for part in self.parts.values())

    @property
    def activation_bytes(self) -> int:
        """Held between forward and backward, with fused attention."""
        return sum(part.activation_bytes for part in self.parts.values())

    @property
    def checkpointed_bytes(self) -> int:
        """The same with activation checkpointing: every block's input, and the inside of one block at a time."""
        return self.activation_bytes - sum(self.block_bytes) + self.block_input_bytes + max(self.block_bytes)

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and AdamW's moments."""
        return self.parameters * ADAMW_BYTES[self.precision]

    def training_bytes(self, *, checkpointing: bool = False) -> int:
        return self.state_bytes + (self.checkpointed_bytes if checkpointing else self.activation_bytes)

    @cached_property
    def quadratic_macs(self) -> int:
        """MACs of the attention products that grow with the square of the tokens."""
        return sum(self.module_macs[module] for module in quadratic_attention(self.twin))

    @property
    def crossover_tokens(self) -> float:
        """Tokens at which the quadratic part equals all the rest, if ever: it grows with n², the rest with n."""
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
    """The cost of a model, by name, config or object, at any image size.

    >>> cost("vit_base_16", image_size=384).macs / 1e9
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if precision not in BYTES:
        raise ValueError(f"precision must be one of {', '.join(BYTES)}, got {precision!r}")
    name = model if isinstance(model, str) else type(model).__name__.removesuffix("Config")
    if isinstance(model, Model):
        twin = copy.deepcopy(model).to("meta")
        size = pair(model.config.image_size if image_size is None else image_size, "image_size")
    else:
        config = find_config(model).override(**overrides)
        size = pair(config.image_size if image_size is None else image_size, "image_size")
        with torch.device("meta"):
            twin = config.override(image_size=size).build()
    twin.train()
    for norm in twin.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()  # in training it refuses one value per channel, which is all that one small image has left
    images = torch.empty(batch, twin.config.num_channels, *size, device="meta")
    empty = Cost(name, size, batch, precision, 0, len(twin.blocks), twin.strides[-1], twin=twin)
    return Meter(empty).measure(images)


class Meter:
    """Walks through one forward pass and adds up every layer's formula."""

    def __init__(self, result: Cost) -> None:
        self.model = result.twin
        self.cost = result
        self.width = BYTES[result.precision]
        self.homes = homes(result.twin)
        self.seen: set[int] = set()  # storages that are counted already
        self.outside: set[int] = set()  # those that a layer outside the blocks saves
        self.kept: list[Tensor] = []  # keeps them alive, so that no id is used twice

    def measure(self, images: Tensor) -> Cost:
        for module, (part, _) in self.homes.items():
            self.cost.parts[part].parameters += sum(p.numel() for p in module.parameters(recurse=False))
        self.cost.block_bytes = [0] * self.cost.depth
        with self.watching():
            self.model.outputs(Inputs(images))
        self.cost.num_tokens = self.model.features(images).tokens.shape[1]
        return self.cost

    @contextmanager
    def watching(self) -> Iterator[None]:
        hooks = []
        for module in self.homes:
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
            part, block = self.homes[module]
            self.cost.parts[part].macs += macs
            self.cost.module_macs[module] += macs
            if isinstance(module, Attend):
                self.cost.attention_bytes += math.prod(args[0].shape[:-1]) * args[1].shape[-2] * self.width
            if block is None:
                self.outside |= {tensor.untyped_storage()._cdata for tensor in saved}
            size = sum(self.new_bytes(tensor) for tensor in saved) + extra_bytes
            self.cost.parts[part].activation_bytes += size
            if block is not None:
                self.cost.block_bytes[block] += size

        return run

    def enter_block(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].untyped_storage()._cdata not in self.outside:
            self.cost.block_input_bytes += args[0].numel() * self.width

    def new_bytes(self, tensor: Tensor) -> int:
        """The bytes of the storage behind a tensor, once: views share it, and a view keeps all of it alive."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.seen:
            return 0
        self.seen.add(storage._cdata)
        self.kept.append(tensor)
        return storage.nbytes() // tensor.element_size() * self.width


class Bill(NamedTuple):
    """What one call of a layer costs: the storages behind ``saved`` are counted once, whoever saves them."""

    macs: int = 0
    saved: tuple[Tensor, ...] = ()
    extra_bytes: int = 0


Formula = Callable[[nn.Module, tuple[Any, ...], Tensor], Bill]


def linear(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    assert isinstance(module, nn.Linear)
    return Bill(output.numel() * module.in_features, (args[0],))


def conv(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    assert isinstance(module, nn.Conv2d)
    return Bill(output.numel() * module.weight[0].numel(), (args[0],))


def whiten(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    assert isinstance(module, Whiten)
    return Bill(output.numel() // 2 * 4 * module.num_channels)


def layer_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    return Bill(saved=(args[0],), extra_bytes=2 * 4 * math.prod(args[0].shape[:-1]))


def pointwise(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    return Bill(saved=(args[0],))


def batch_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    return Bill(saved=(args[0],), extra_bytes=2 * 4 * args[0].shape[1])


def group_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    assert isinstance(module, nn.GroupNorm)
    return Bill(saved=(args[0],), extra_bytes=2 * 4 * args[0].shape[0] * module.num_groups)


def image_norm(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    """What comes beside GroupNorm's: the normalized tokens, before they are scaled."""
    return Bill(saved=(torch.empty_like(output),))


def star_relu(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    """What is left of the input, and its square."""
    return Bill(saved=(torch.empty_like(output), torch.empty_like(output)))


def max_pool(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    return Bill(saved=(args[0],), extra_bytes=8 * output.numel())


def keeps_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    return Bill(saved=(output,))


def attend(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    q, k, v = args
    return Bill((output.numel() + q.numel()) * k.shape[-2], (q, k, v), 4 * math.prod(q.shape[:-1]))


def positive_features(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    return Bill(output.numel() * args[0].shape[-1], extra_bytes=4 * args[0].numel())


def linear_attend(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    q, k, v = args
    averages = v.new_empty(*v.shape[:-2], k.shape[-1], v.shape[-1])
    saved = v.flatten(0, -3), averages  # products flatten batch and heads, with a copy where they must
    return Bill((q.numel() + k.numel()) * v.shape[-1], saved, 4 * (q.numel() + 2 * k.numel()))


def sparse_attention(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    """What comes beside its Attend: the groups' outputs before they are put in order, the mask, and the indices."""
    assert isinstance(module, SparseAttention)
    x, grid, *_ = args
    groups = module.groups(grid, x.device)
    outputs = x.new_empty(x.shape[0], groups.queries.numel(), x.shape[2])
    indices = groups.queries.numel() + groups.keys.numel() + groups.homes.numel()
    return Bill(saved=(outputs,), extra_bytes=4 * groups.seen.numel() + 8 * indices)


def gate(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Bill:
    """The product that follows a gate saves the gate's output too."""
    return Bill(saved=(args[0], output))


FORMULAS: dict[type[nn.Module], Formula] = {
    nn.Linear: linear,
    nn.Conv2d: conv,
    Whiten: whiten,
    nn.LayerNorm: layer_norm,
    nn.BatchNorm2d: batch_norm,
    nn.GroupNorm: group_norm,
    ImageNorm: image_norm,
    nn.GELU: pointwise,
    StarReLU: star_relu,
    nn.ReLU: keeps_output,
    nn.MaxPool2d: max_pool,
    nn.AvgPool2d: pointwise,
    LayerScale: pointwise,
    Attend: attend,
    PositiveFeatures: positive_features,
    LinearAttend: linear_attend,
    SparseAttention: sparse_attention,
    nn.SiLU: gate,
}


def quadratic_attention(model: Model) -> set[nn.Module]:
    """The attentions whose products grow with the square of the tokens, found by looking at two large images.

    Where sides double, these grow sixteenfold. Attention within windows or neighborhoods, over channels, to a fixed
    number of keys or of a few queries grows fourfold.
    """
    small, large = (attention_macs(model, side) for side in (64, 128))
    return {module for module, macs in small.items() if large[module] > 8 * macs}


def attention_macs(model: Model, side: int) -> Counter[nn.Module]:
    """MACs of every Attend, for an image that has ``side`` cells in height and width even in the coarsest map."""
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


def homes(model: Model) -> dict[nn.Module, tuple[str, int | None]]:
    """For every module, the component it belongs to and the index of its block."""
    blocks = {id(module): index for index, block in enumerate(model.blocks) for module in block.modules()}
    found = {}
    for path, module in model.named_modules():
        words = path.split(".")
        part = next((PART_OF[word] for word in words if word in PART_OF), None)
        if part is None:
            part = "norm" if isinstance(module, nn.LayerNorm) else "head" if words[0] in model.head_names else "other"
        found[module] = (part, blocks.get(id(module)))
    return found
