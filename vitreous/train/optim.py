"""Optimizers, parameter groups, layer-wise learning rate decay and freezing.

Weight decay applies to the weights of linear layers and convolutions only, not to biases, norms, tokens or position
embeddings. Block i of n has the learning rate lr · layer_decay^(n + 1 − i), the stem that of i = 0, and the head lr.

An optimizer is chosen by name, as an object, or as JSON. To add one, subclass :class:`Optimizer` with ``build`` and
list it in ``OPTIMIZERS``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.models.base import Model
from vitreous.options import Named, Positive, Rate, Share
from vitreous.train.muon import MuonStep


@dataclass(frozen=True)
class ParameterRole:
    """What determines a parameter's learning rate, weight decay and optimizer."""

    depth: int  # 0: stem; i: block i, or between it and the next; n + 1: after the last block
    decays: bool
    is_matrix: bool  # suited to Muon: a weight matrix other than the patch embedding and the classifier


def parameter_roles(model: Model) -> dict[str, ParameterRole]:
    """Return the role of every parameter, by name."""
    blocks = {id(p): i for i, block in enumerate(model.blocks, start=1) for p in block.parameters()}
    heads = {id(p) for name in model.head_names for p in getattr(model, name).parameters()}
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    depth, result = 0, {}
    for name, parameter in model.named_parameters():
        depth = blocks.get(id(parameter), depth)
        behind = depth == len(model.blocks) and id(parameter) not in blocks
        owner = owners[id(parameter)]
        decays = isinstance(owner, nn.Linear | nn.Conv2d) and parameter.ndim > 1
        inner = id(parameter) not in heads and getattr(owner, "in_channels", 0) != model.config.num_channels
        own_depth = len(model.blocks) + 1 if behind or id(parameter) in heads else depth
        result[name] = ParameterRole(own_depth, decays, decays and inner)
    return result


def freeze(model: Model, num_blocks: int) -> None:
    """Freeze the stem and the first ``num_blocks`` blocks; -1 freezes all but the classifier."""
    if num_blocks == 0:
        return
    if num_blocks > len(model.blocks):
        raise ValueError(
            f"train.freeze_blocks is {num_blocks}, but the model has {len(model.blocks)} blocks; use -1 to freeze all"
        )
    last = len(model.blocks) if num_blocks == -1 else num_blocks
    heads = {id(p) for name in model.head_names for p in getattr(model, name).parameters()}
    roles = parameter_roles(model)
    for name, parameter in model.named_parameters():
        behind = num_blocks == -1 and id(parameter) not in heads
        parameter.requires_grad_(roles[name].depth > last and not behind)


def keep_frozen_in_eval(model: nn.Module) -> None:
    """Put frozen modules into evaluation mode: batch-norm statistics stay fixed, and dropout is off."""
    for module in model.modules():
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            module.eval()


@dataclass(frozen=True)
class TrainableParameter:
    """A trainable parameter; ``scale`` multiplies the learning rate of the optimizer."""

    parameter: Tensor
    role: ParameterRole
    scale: float


def trainable_parameters(model: Model, layer_decay: float) -> list[TrainableParameter]:
    """Return every parameter that is not frozen, in the model's order, with its learning rate scale.

    Raises:
        ValueError: If every parameter is frozen.
    """
    last = len(model.blocks) + 1
    roles = parameter_roles(model)
    found = [
        TrainableParameter(parameter, roles[name], layer_decay ** (last - roles[name].depth))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    if not found:
        raise ValueError("nothing to train: every parameter is frozen; lower train.freeze_blocks")
    return found


@dataclass(frozen=True, kw_only=True)
class Optimizer(Named):
    """Base of all optimizer options; subclasses implement :meth:`build`.

    ``fsdp_unsupported`` is the reason why an optimizer cannot be used with FSDP, empty if it can.
    """

    key: ClassVar[str] = "optimizer"
    fsdp_unsupported: ClassVar[str] = ""

    lr: Positive = 1e-3  # peak learning rate
    weight_decay: float = 0.05

    @classmethod
    def table(cls) -> Mapping[str, Optimizer]:
        return OPTIMIZERS

    @abstractmethod
    def build(self, parameters: Sequence[TrainableParameter], *, fused: bool) -> list[torch.optim.Optimizer]:
        """Create the torch optimizers for these parameters, using torch's fused kernel if ``fused`` and it has one."""

    def groups(self, parameters: Sequence[TrainableParameter], lr: float) -> list[dict[str, Any]]:
        """Group parameters by weight decay and learning rate; ``peak_lr`` keeps the rate that the schedule scales."""
        grouped: dict[tuple[bool, float], list[Tensor]] = defaultdict(list)
        for each in parameters:
            grouped[each.role.decays, each.scale].append(each.parameter)
        return [
            {
                "params": tensors,
                "lr": lr * scale,
                "peak_lr": lr * scale,
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for (decays, scale), tensors in grouped.items()
        ]


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    name: ClassVar[str] = "adamw"
    betas: tuple[Rate, Rate] = (0.9, 0.999)

    def build(self, parameters: Sequence[TrainableParameter], *, fused: bool) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.groups(parameters, self.lr), lr=self.lr, betas=self.betas, fused=fused)]


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    name: ClassVar[str] = "sgd"
    momentum: Share = 0.9  # Nesterov momentum; 0: none

    def build(self, parameters: Sequence[TrainableParameter], *, fused: bool) -> list[torch.optim.Optimizer]:
        groups = self.groups(parameters, self.lr)
        return [torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)]


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for the hidden weight matrices, AdamW with ``lr`` and ``betas`` for all other parameters."""

    name: ClassVar[str] = "muon"
    fsdp_unsupported: ClassVar[str] = "it needs full matrices, which FSDP shards"
    matrix_lr: Positive = 0.02  # peak learning rate of the matrices
    betas: tuple[Rate, Rate] = (0.9, 0.999)

    def build(self, parameters: Sequence[TrainableParameter], *, fused: bool) -> list[torch.optim.Optimizer]:
        result: list[torch.optim.Optimizer] = []
        if matrices := [each for each in parameters if each.role.is_matrix]:
            groups = self.groups(matrices, self.matrix_lr)
            result.append(MuonStep(groups, lr=self.matrix_lr, weight_decay=self.weight_decay))
        if others := [each for each in parameters if not each.role.is_matrix]:
            adam = AdamW(lr=self.lr, weight_decay=self.weight_decay, betas=self.betas)
            result += adam.build(others, fused=fused)
        return result


OPTIMIZERS: dict[str, Optimizer] = {optimizer.name: optimizer for optimizer in (AdamW(), SGD(), Muon())}


def set_learning_rate(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Set every group's learning rate to ``factor`` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
