"""Checks of exercise 9."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.explain.rollout import relevance_map
from vitreous.explain.rollout import rollout as reference
from vitreous.lab.exercises.checking import Answer, Wrong, agree, blame, shaped


def check_rollout_shape(rollout: Answer) -> None:
    """rollout: the shape is (b, n, n)."""
    mistakes = {
        (2, 3, 5, 5): "the heads are still there: take their mean",
        (5, 5): "the images are gone: average over heads, axis 1, only",
    }
    shaped(rollout(layers(4)), (2, 5, 5), "(b, n, n)", mistakes)


def check_rollout_example(rollout: Answer) -> None:
    """rollout: the example of the task comes out."""
    first, second = torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    found = rollout([first[None, None], second[None, None]])
    mistakes = (
        (
            torch.full((1, 2, 2), 0.5),
            "[½ ½] in both rows: the matrices stand in the wrong order; the last layer belongs on the left",
        ),
        ((second @ first)[None], "the residual is missing: without ½ (A + I) this is the plain product"),
        (((second + torch.eye(2)) @ (first + torch.eye(2)))[None], "A + I was not halved: rows sum to 4, not 1"),
        ((half(second) * half(first))[None], "matrices were multiplied number by number (*): use @"),
        ((half(second) * half(first) * torch.eye(2))[None], "matrices were multiplied number by number (*): use @"),
    )
    agree(found, (half(second) @ half(first))[None], "the example does not come out", mistakes)


def check_rollout_rows(rollout: Answer) -> None:
    """rollout: rows sum to 1, as those of every layer do."""
    rows = rollout(layers(4)).sum(dim=-1)
    worst = rows.flatten()[(rows - 1).abs().argmax()].item()
    if abs(worst - 1) > 1e-3:
        raise Wrong(
            f"a row sums to {worst:.3g}, not 1: are heads averaged (not added), A + I halved, matrices multiplied by @?"
        )


def check_rollout_heads(rollout: Answer) -> None:
    """rollout: all heads count alike."""
    given = layers(3)
    mistakes = (
        (reference([layer[:, :1] for layer in given]), "only the first head was used"),
        (reference([layer[:, -1:] for layer in given]), "only the last head was used"),
        (reference(given, fusion="max"), "the largest head was taken instead of the mean"),
        (
            torch.stack([reference([layer[:, head : head + 1] for layer in given]) for head in range(3)]).mean(0),
            "each head was rolled out by itself: average the heads of a layer before multiplying",
        ),
    )
    blame(rollout(given), mistakes)


def check_rollout_order(rollout: Answer) -> None:
    """rollout: the first layer is multiplied first, and all layers count."""
    given = layers(4)
    mistakes = (
        (
            reference(given[::-1]),
            "the layers stand in the wrong order: multiply each new layer from the left, step @ result",
        ),
        (reference(given[-1:]), "only the last layer was used"),
        (reference(given[1:]), "the first layer was left out"),
        (reference(given[:-1]), "the last layer was left out"),
        (reference(given).mT, "queries and keys are swapped: a matrix was transposed"),
    )
    blame(rollout(given), mistakes)


def check_rollout_residual(rollout: Answer) -> None:
    """rollout: the residual keeps tokens apart, twelve layers deep."""
    given = layers(12)
    mistakes = (
        (
            reference(given, residual=False),
            "the residual is missing: after twelve layers all rows are nearly the same, and the map says nothing",
        ),
    )
    blame(rollout(given), mistakes)


def check_rollout_library(rollout: Answer) -> None:
    """rollout: the numbers are the library's."""
    for depth in (1, 2, 6):
        given = layers(depth)
        agree(rollout(given), reference(given), f"with {depth} layers the numbers differ")


def check_map_shape(class_map: Answer) -> None:
    """class_map: the shape is (b, rows, columns)."""
    mistakes = {
        (2, 3, 2): "rows and columns of the grid are swapped",
        (2, 6): "lay the patches out as rows and columns",
        (2, 7): "leave out the class token's own place, and lay the patches out on the grid",
    }
    shaped(class_map(reference(layers(2, tokens=7)), (2, 3)), (2, 2, 3), "(b, rows, columns)", mistakes)


def check_map_row(class_map: Answer) -> None:
    """class_map: it is the class token's row, from the first patch to the last."""
    rolled = reference(layers(2, tokens=7))
    mistakes = (
        (
            relevance_map(rolled.mT, (2, 3), 1),
            "this is the class token's column, what the patches drew from it; its row says what it drew from them",
        ),
        (
            rolled[:, 0, :6].reshape(2, 2, 3),
            "the class token's own place is in the map and the last patch is not: patches are 1 to the end, [1:]",
        ),
        (rolled[:, -1, 1:].reshape(2, 2, 3), "this is the last token's row; the class token is token 0"),
        (rolled[:, 0, 1:].reshape(2, 3, 2).mT, "the patches were laid out down the columns"),
        (
            rolled.mean(dim=1)[:, 1:].reshape(2, 2, 3),
            "this is the mean over all tokens; the class token's row is row 0",
        ),
    )
    agree(class_map(rolled, (2, 3)), relevance_map(rolled, (2, 3), 1), "the map differs", mistakes)


def layers(depth: int, *, tokens: int = 5) -> list[Tensor]:
    """Attention of two images, three heads."""
    return [(2 * torch.randn(2, 3, tokens, tokens)).softmax(-1) for _ in range(depth)]


def half(matrix: Tensor) -> Tensor:
    return (matrix + torch.eye(len(matrix))) / 2
