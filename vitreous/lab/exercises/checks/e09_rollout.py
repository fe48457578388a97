"""Checks of exercise 9."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.explain.rollout import relevance_map
from vitreous.explain.rollout import rollout as reference
from vitreous.lab.exercises.checking import Answer, CheckFailed, reject_mistakes, require_close, require_shape


def check_rollout_shape(rollout: Answer) -> None:
    """rollout: the shape is (b, n, n)."""
    mistakes = {
        (2, 3, 5, 5): "the head axis is still there: take the mean over it",
        (5, 5): "the batch axis is missing: average over heads, axis 1, only",
    }
    require_shape(rollout(layers(4)), (2, 5, 5), "(b, n, n)", mistakes)


def check_rollout_example(rollout: Answer) -> None:
    """rollout: the example of the task is reproduced."""
    first, second = torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    found = rollout([first[None, None], second[None, None]])
    mistakes = (
        (
            torch.full((1, 2, 2), 0.5),
            "[½ ½] in both rows: the matrices are in the wrong order; the last layer belongs on the left",
        ),
        ((second @ first)[None], "the residual is missing: without ½ (A + I) this is the plain product"),
        (((second + torch.eye(2)) @ (first + torch.eye(2)))[None], "A + I was not halved: rows sum to 4, not 1"),
        ((add_residual(second) * add_residual(first))[None], "matrices were multiplied elementwise (*): use @"),
        (
            (add_residual(second) * add_residual(first) * torch.eye(2))[None],
            "matrices were multiplied elementwise (*): use @",
        ),
    )
    require_close(found, (add_residual(second) @ add_residual(first))[None], "the example is not reproduced", mistakes)


def check_rollout_rows(rollout: Answer) -> None:
    """rollout: rows sum to 1, like those of every layer."""
    rows = rollout(layers(4)).sum(dim=-1)
    worst = rows.flatten()[(rows - 1).abs().argmax()].item()
    if abs(worst - 1) > 1e-3:
        raise CheckFailed(
            f"a row sums to {worst:.3g}, not 1: are heads averaged, not summed, A + I halved, matrices multiplied by @?"
        )


def check_rollout_heads(rollout: Answer) -> None:
    """rollout: all heads have equal weight."""
    given = layers(3)
    mistakes = (
        (reference([layer[:, :1] for layer in given]), "only the first head was used"),
        (reference([layer[:, -1:] for layer in given]), "only the last head was used"),
        (reference(given, fusion="max"), "the maximum over heads was taken instead of the mean"),
        (
            torch.stack([reference([layer[:, head : head + 1] for layer in given]) for head in range(3)]).mean(0),
            "each head was rolled out separately: average the heads of a layer before multiplying",
        ),
    )
    reject_mistakes(rollout(given), mistakes)


def check_rollout_order(rollout: Answer) -> None:
    """rollout: the first layer is multiplied first, and all layers are used."""
    given = layers(4)
    mistakes = (
        (
            reference(given[::-1]),
            "the layers are in the wrong order: multiply each new layer from the left, step @ result",
        ),
        (reference(given[-1:]), "only the last layer was used"),
        (reference(given[1:]), "the first layer was left out"),
        (reference(given[:-1]), "the last layer was left out"),
        (reference(given).mT, "queries and keys are swapped: a matrix was transposed"),
    )
    reject_mistakes(rollout(given), mistakes)


def check_rollout_residual(rollout: Answer) -> None:
    """rollout: the residual keeps rows distinct through twelve layers."""
    given = layers(12)
    mistakes = (
        (
            reference(given, residual=False),
            "the residual is missing: after twelve layers all rows are nearly identical, and the map is meaningless",
        ),
    )
    reject_mistakes(rollout(given), mistakes)


def check_rollout_library(rollout: Answer) -> None:
    """rollout: the values equal the library's."""
    for depth in (1, 2, 6):
        given = layers(depth)
        require_close(rollout(given), reference(given), f"with {depth} layers the values differ")


def check_map_shape(class_map: Answer) -> None:
    """class_map: the shape is (b, rows, columns)."""
    mistakes = {
        (2, 3, 2): "rows and columns of the grid are swapped",
        (2, 6): "reshape the patches to rows and columns",
        (2, 7): "drop the class token's own entry, and reshape the patches to the grid",
    }
    require_shape(class_map(reference(layers(2, tokens=7)), (2, 3)), (2, 2, 3), "(b, rows, columns)", mistakes)


def check_map_row(class_map: Answer) -> None:
    """class_map: it is the class token's row, from the first patch to the last."""
    rolled = reference(layers(2, tokens=7))
    mistakes = (
        (
            relevance_map(rolled.mT, (2, 3), 1),
            "this is the class token's column, its influence on the patches; its row is their influence on it",
        ),
        (
            rolled[:, 0, :6].reshape(2, 2, 3),
            "the class token's own entry is in the map and the last patch is not: patches are 1 to the end, [1:]",
        ),
        (rolled[:, -1, 1:].reshape(2, 2, 3), "this is the last token's row; the class token is token 0"),
        (rolled[:, 0, 1:].reshape(2, 3, 2).mT, "the patches were laid out column by column"),
        (
            rolled.mean(dim=1)[:, 1:].reshape(2, 2, 3),
            "this is the mean over all tokens; the class token's row is row 0",
        ),
    )
    require_close(class_map(rolled, (2, 3)), relevance_map(rolled, (2, 3), 1), "the map differs", mistakes)


def layers(depth: int, *, tokens: int = 5) -> list[Tensor]:
    """Attention matrices of two images and three heads, one per layer."""
    return [(2 * torch.randn(2, 3, tokens, tokens)).softmax(-1) for _ in range(depth)]


def add_residual(matrix: Tensor) -> Tensor:
    return (matrix + torch.eye(len(matrix))) / 2
