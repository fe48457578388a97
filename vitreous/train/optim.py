"""Which parameters learn, how fast, with how much decay, and by which optimizer.

Only the weights of linear layers and convolutions decay: not biases, norms, tokens and positions. With layer-wise
decay the learning rate of block i of n is lr · decay^(n − i), the stem's the smallest and the classifier's whole.

An optimizer is chosen like a mixer: by name, by its options, or by their JSON. A new one is a class with ``build`` and
one word in ``OPTIMIZERS``.
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
class Role:
    """What an optimizer has to know of a parameter."""

    depth: int  # 0: before the first block; i: in block i or between it and the next; n + 1: after the last
    decays: bool
    is_matrix: bool  # inside the network, where Muon is at home: neither the pixels' layer nor the classifier


def roles(model: Model) -> dict[str, Role]:
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
        result[name] = Role(own_depth, decays, decays and inner)
    return result


def freeze(model: Model, num_blocks: int) -> None:
    """Stem and first blocks (-1: all but the classifier) keep their weights and behave as in evaluation."""
    if num_blocks == 0:
        return
    if num_blocks > len(model.blocks):
        raise ValueError(
            f"train.freeze_blocks is {num_blocks}, but the model has {len(model.blocks)} blocks; -1 freezes all"
        )
    last = len(model.blocks) if num_blocks == -1 else num_blocks
    heads = {id(p) for name in model.head_names for p in getattr(model, name).parameters()}
    roles_of = roles(model)
    for name, parameter in model.named_parameters():
        behind = num_blocks == -1 and id(parameter) not in heads
        parameter.requires_grad_(roles_of[name].depth > last and not behind)


def rest(model: nn.Module) -> None:
    """Frozen modules rest: their norms keep their statistics and nothing is dropped in them."""
    for module in model.modules():
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            module.eval()


@dataclass(frozen=True)
class Learner:
    """A parameter that learns, and how: ``scale`` is its learning rate as a share of the optimizer's."""

    parameter: Tensor
    role: Role
    scale: float


def learners(model: Model, layer_decay: float) -> list[Learner]:
    """Every parameter that is not frozen, in the model's order."""
    last = len(model.blocks) + 1
    roles_of = roles(model)
    found = [
        Learner(parameter, roles_of[name], layer_decay ** (last - roles_of[name].depth))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    if not found:
        raise ValueError("nothing is left to train: every parameter is frozen; lower train.freeze_blocks")
    return found


@dataclass(frozen=True, kw_only=True)
class Optimizer(Named):
    """Options of an optimizer. ``no_shards`` says why it cannot serve with fsdp; empty means that it can."""

    key: ClassVar[str] = "optimizer"
    no_shards: ClassVar[str] = ""

    lr: Positive = 1e-3  # the highest learning rate
    weight_decay: float = 0.05

    @classmethod
    def table(cls) -> Mapping[str, Optimizer]:
        return OPTIMIZERS

    @abstractmethod
    def build(self, learners: Sequence[Learner], *, fused: bool) -> list[torch.optim.Optimizer]:
        """The optimizers that share these parameters; ``fused``: where torch may do it in one kernel."""

    def groups(self, learners: Sequence[Learner], lr: float) -> list[dict[str, Any]]:
        """Torch's groups: parameters that decay alike and learn at the same rate, which stays known as the highest."""
        alike: dict[tuple[bool, float], list[Tensor]] = defaultdict(list)
        for learner in learners:
            alike[learner.role.decays, learner.scale].append(learner.parameter)
        return [
            {
                "params": parameters,
                "lr": lr * scale,
                "highest": lr * scale,
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for (decays, scale), parameters in alike.items()
        ]


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    name: ClassVar[str] = "adamw"
    betas: tuple[Rate, Rate] = (0.9, 0.999)

    def build(self, learners: Sequence[Learner], *, fused: bool) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.groups(learners, self.lr), lr=self.lr, betas=self.betas, fused=fused)]


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    name: ClassVar[str] = "sgd"
    momentum: Share = 0.9  # Nesterov's; 0: none

    def build(self, learners: Sequence[Learner], *, fused: bool) -> list[torch.optim.Optimizer]:
        groups = self.groups(learners, self.lr)
        return [torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)]


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Muon for the inner matrices, AdamW with ``lr`` and ``betas`` for everything else."""

    name: ClassVar[str] = "muon"
    no_shards: ClassVar[str] = "it needs whole matrices, which fsdp divides"
    matrix_lr: Positive = 0.02  # the highest learning rate of the matrices
    betas: tuple[Rate, Rate] = (0.9, 0.999)

    def build(self, learners: Sequence[Learner], *, fused: bool) -> list[torch.optim.Optimizer]:
        result: list[torch.optim.Optimizer] = []
        if matrices := [learner for learner in learners if learner.role.is_matrix]:
            groups = self.groups(matrices, self.matrix_lr)
            result.append(MuonStep(groups, lr=self.matrix_lr, weight_decay=self.weight_decay))
        if others := [learner for learner in learners if not learner.role.is_matrix]:
            adam = AdamW(lr=self.lr, weight_decay=self.weight_decay, betas=self.betas)
            result += adam.build(others, fused=fused)
        return result


OPTIMIZERS: dict[str, Optimizer] = {optimizer.name: optimizer for optimizer in (AdamW(), SGD(), Muon())}


def set_rate(optimizers: Iterable[torch.optim.Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["highest"] * share
