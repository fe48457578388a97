"""Which parameters learn, how fast, and with how much decay; one optimiser or two.

Only the weights of linear layers and convolutions decay: not biases, norms, tokens and positions. With layer-wise
decay the learning rate of block i of n is lr · decay^(n − i), the stem's the smallest and the classifier's whole.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.models.base import Model
from vitreous.train.config import TrainConfig
from vitreous.train.muon import Muon


@dataclass(frozen=True)
class Role:
    """What an optimiser has to know of a parameter."""

    depth: int  # 0: before the first block; i: in block i or between it and the next; n + 1: after the last
    decays: bool
    is_matrix: bool  # inside the network, where Muon is at home: neither the pixels' layer nor the classifier


def roles(model: Model) -> dict[str, Role]:
    blocks = {id(p): i for i, block in enumerate(model.blocks(), start=1) for p in block.parameters()}
    heads = {id(p) for name in model.head_names for p in getattr(model, name).parameters()}
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    depth, result = 0, {}
    for name, parameter in model.named_parameters():
        depth = blocks.get(id(parameter), depth)
        behind = depth == len(model.blocks()) and id(parameter) not in blocks
        owner = owners[id(parameter)]
        decays = isinstance(owner, nn.Linear | nn.Conv2d) and parameter.ndim > 1
        inner = id(parameter) not in heads and getattr(owner, "in_channels", 0) != model.config.num_channels
        own_depth = len(model.blocks()) + 1 if behind or id(parameter) in heads else depth
        result[name] = Role(own_depth, decays, decays and inner)
    return result


def freeze(model: Model, num_blocks: int) -> None:
    """Stem and first blocks (-1: all but the classifier) keep their weights and behave as in evaluation."""
    if num_blocks == 0:
        return
    if num_blocks > len(model.blocks()):
        raise ValueError(
            f"train.freeze_blocks is {num_blocks}, but the model has {len(model.blocks())} blocks; -1 freezes all"
        )
    last = len(model.blocks()) if num_blocks == -1 else num_blocks
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


def optimisers(model: Model, config: TrainConfig, *, fused: bool) -> list[torch.optim.Optimizer]:
    """AdamW or SGD for all, or Muon for the matrices with AdamW for the rest; groups keep their highest rate."""
    groups: dict[tuple[bool, bool, float], list[Tensor]] = defaultdict(list)
    num_blocks = len(model.blocks())
    roles_of = roles(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            role = roles_of[name]
            use_muon = config.optimiser == "muon" and role.is_matrix
            groups[use_muon, role.decays, config.layer_decay ** (num_blocks + 1 - role.depth)].append(parameter)
    if not groups:
        raise ValueError("nothing is left to train: every parameter is frozen; lower train.freeze_blocks")

    def made(use_muon: bool, lr: float) -> list[dict[str, object]]:
        return [
            {
                "params": parameters,
                "lr": lr * scale,
                "highest": lr * scale,
                "weight_decay": config.weight_decay if decays else 0.0,
            }
            for (kind, decays, scale), parameters in groups.items()
            if kind == use_muon
        ]

    result: list[torch.optim.Optimizer] = []
    if matrices := made(True, config.muon_lr):
        result.append(Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay))
    if others := made(False, config.lr):
        if config.optimiser == "sgd":
            result.append(torch.optim.SGD(others, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0))
        else:
            result.append(torch.optim.AdamW(others, lr=config.lr, betas=config.betas, fused=fused))
    return result


def set_rate(optimisers: list[torch.optim.Optimizer], share: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["highest"] * share
