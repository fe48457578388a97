"""Checks of exercise 7."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from vitreous.cost import Cost, cost
from vitreous.lab.exercises.checking import Answer, CheckFailed, require_number
from vitreous.models.vit import ViTConfig

EXAMPLE = (32, 16, 8, 1, 10)
#: Sizes for which all parts of a ViT differ in cost, so that a deviation identifies the part.
UNEVEN = (56, 8, 48, 3, 11)
BASE = (224, 16, 768, 12, 1000)


def check_parameters_example(parameters: Answer) -> None:
    """parameters: the example of the task is reproduced."""
    compare(require_number(parameters(*EXAMPLE)), reference(*EXAMPLE).parameters)


def check_parameters_parts(parameters: Answer) -> None:
    """parameters: every part is counted once."""
    compare(require_number(parameters(*UNEVEN)), reference(*UNEVEN).parameters, parameter_parts(*UNEVEN))


def check_parameters_depth(parameters: Answer) -> None:
    """parameters: each further block adds 12·D² + 13·D."""
    once, twice = (require_number(parameters(64, 8, 32, depth, 10)) for depth in (4, 5))
    if twice - once != 12 * 32**2 + 13 * 32:
        raise CheckFailed(
            f"a block of width 32 adds {twice - once:,}, not {12 * 32**2 + 13 * 32:,}: which parts does a block have?"
        )


def check_parameters_vit_base(parameters: Answer) -> None:
    """parameters: ViT-B/16 has 86.6 million."""
    compare(require_number(parameters(*BASE)), reference(*BASE).parameters)


def check_macs_example(macs: Answer) -> None:
    """macs: the example of the task is reproduced."""
    compare(require_number(macs(*EXAMPLE)), reference(*EXAMPLE).macs)


def check_macs_flops(macs: Answer) -> None:
    """macs: a multiply-accumulate counts once, not twice."""
    if require_number(macs(*UNEVEN)) == 2 * reference(*UNEVEN).macs:
        raise CheckFailed("these are FLOPs, twice too many: a MAC is one multiplication and one addition together")


def check_macs_parts(macs: Answer) -> None:
    """macs: every part is counted once."""
    compare(require_number(macs(*UNEVEN)), reference(*UNEVEN).macs, mac_parts(*UNEVEN))


def check_macs_grow(macs: Answer) -> None:
    """macs: four times the tokens cost sixteen times the attention products."""
    found = [require_number(macs(side, 16, 64, 1, 10)) for side in (128, 256, 512)]
    right = [reference(side, 16, 64, 1, 10).macs for side in (128, 256, 512)]
    growth = [round(second / first, 3) for first, second in pairwise(found)]
    expected = [round(second / first, 3) for first, second in pairwise(right)]
    if growth != expected:
        raise CheckFailed(
            f"twice the side costs {growth[0]} and {growth[1]} times as many MACs, not {expected[0]} and {expected[1]}"
        )


def check_macs_vit_base(macs: Answer) -> None:
    """macs: ViT-B/16 takes 17.6 billion at 224 pixels."""
    compare(require_number(macs(*BASE)), reference(*BASE).macs)


def compare(found: float, right: int, parts: Mapping[str, int] | None = None) -> None:
    """Raise an error that names the part by which a count is too small or too large."""
    if found == right:
        return
    for name, value in (parts or {}).items():
        if found == right - value:
            raise CheckFailed(f"{found:,.0f} is too small by {value:,}: exactly {name}")
        if found == right + value:
            raise CheckFailed(f"{found:,.0f} is too large by {value:,}: exactly {name}, counted twice")
    direction = "large" if found > right else "small"
    raise CheckFailed(f"{found:,.0f} is not {right:,}: too {direction} by {abs(found - right):,.0f}", vague=True)


def parameter_parts(image: int, p: int, d: int, depth: int, classes: int) -> dict[str, int]:
    """Parts that are easily forgotten, alone or together."""
    tokens = (image // p) ** 2 + 1
    return {
        "the output projection of attention, D² + D per block": depth * (d * d + d),
        "D, which may be the class token, its position, or the bias of the patch projection": d,
        "2·D, which may be the final norm, or the class token and its position": 2 * d,
        "all positions, N·D": tokens * d,
        "the norms of the blocks, 4·D each": depth * 4 * d,
        "one of the two norms of each block, 2·D": depth * 2 * d,
        "all norms": (4 * depth + 2) * d,
        "all biases of linear layers": depth * 9 * d + d + classes,
        "the biases inside the blocks, 9·D each": depth * 9 * d,
        "the biases of queries, keys and values, 3·D per block": depth * 3 * d,
        "the biases of the head, K": classes,
        "the head, D·K + K": d * classes + classes,
        "the patch projection, 3·p·p·D + D": 3 * p * p * d + d,
        "two of the three channels": 2 * p * p * d,
        "half of the MLP (D → 4D and 4D → D are two layers)": depth * (4 * d * d + d),
    }


def mac_parts(image: int, p: int, d: int, depth: int, classes: int) -> dict[str, int]:
    """Parts that are easily forgotten, alone or together."""
    patches = (image // p) ** 2
    n = patches + 1
    return {
        "the class token's share of N (all blocks process it)": depth * (12 * d * d + 2 * d * (2 * n - 1)),
        "one of the two products q kᵀ and weights · v, N²·D per block": depth * n * n * d,
        "both products q kᵀ and weights · v, 2·N²·D per block": depth * 2 * n * n * d,
        "the output projection, N·D² per block": depth * n * d * d,
        "half of the MLP (D → 4D and 4D → D are two layers)": depth * 4 * n * d * d,
        "the patch projection, P·3·p·p·D": patches * 3 * p * p * d,
        "the projection of one patch (the class token is not projected from pixels)": 3 * p * p * d,
        "two of the three channels": patches * 2 * p * p * d,
        "the head, D·K": d * classes,
        "the head at all patches (it reads the class token only)": patches * d * classes,
    }


@cache
def reference(image_size: int, patch_size: int, dim: int, depth: int, num_classes: int) -> Cost:
    return cost(
        ViTConfig(
            image_size=(image_size, image_size),
            patch_size=(patch_size, patch_size),
            dim=dim,
            depth=depth,
            num_heads=1,
            num_classes=num_classes,
        )
    )
