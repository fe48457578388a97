"""Checks of exercise 10."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.lab.exercises.checking import (
    Answer,
    CheckFailed,
    is_close,
    reject_mistakes,
    require_close,
    require_equal,
    require_number,
    require_shape,
)
from vitreous.layers.patch import patchify
from vitreous.models.vit import ViT, ViTConfig

SIZES = {"image_size": 16, "patch_size": 4, "dim": 32, "num_heads": 4, "num_classes": 4}


def check_shape(TinyViT: Answer) -> None:
    """TinyViT: the shape is (b, classes)."""
    mistakes = {
        (3, 17, 4): "the head was applied to all tokens: apply it to the class token only, x[:, 0]",
        (3, 16, 4): "the head was applied to all patches: apply it to the class token only",
        (4,): "the batch axis is missing: x[:, 0] is token 0 of every image, x[0] is the first image",
        (17, 4): "x[0] is the first image; x[:, 0] is token 0 of every image",
        (3, 32): "the head is missing",
    }
    require_shape(make_model(TinyViT)(torch.randn(3, 3, 16, 16)), (3, 4), "(b, classes)", mistakes)


def check_every_part_used(TinyViT: Answer) -> None:
    """TinyViT: every part is used."""
    model, images = make_model(TinyViT), torch.randn(3, 3, 16, 16)
    mistakes = (
        (
            forward_with(model, images, positions=False),
            "the positions are not added: the model cannot tell where a patch is",
        ),
        (
            forward_with(model, images, norm=False),
            "the final norm is missing: with Pre-LN nothing else normalizes the stream",
        ),
        (forward_with(model, images, depth=0), "the blocks are not used"),
        (forward_with(model, images, depth=1), "only the first block is used: apply all of them"),
        (
            forward_with(model, images, class_position=False),
            "the positions are added to patches only: the class token has a position too, the first one",
        ),
    )
    reject_mistakes(model(images), mistakes)


def check_class_token(TinyViT: Answer) -> None:
    """TinyViT: the class token is first, and only its output is read."""
    model, images = make_model(TinyViT), torch.randn(3, 3, 16, 16)
    mistakes = (
        (forward_with(model, images, read="mean"), "the mean of all tokens is read; read token 0"),
        (forward_with(model, images, read="last"), "the last token is read, which is a patch; read token 0"),
        (forward_with(model, images, read="first patch"), "a patch is read, token 1: the class token is token 0"),
        (
            forward_with(model, images, class_last=True),
            "the class token is last and token 0, a patch, is read: put it in front",
        ),
        (
            forward_with(model, images, class_last=True, read="last"),
            "the class token is last: its position embedding is the first one, so put it in front",
        ),
    )
    reject_mistakes(model(images), mistakes)


def check_logits(TinyViT: Answer) -> None:
    """TinyViT: the outputs are logits, not probabilities."""
    found = make_model(TinyViT)(torch.randn(3, 3, 16, 16))
    if is_close(found.sum(-1), torch.ones(3)) and found.min() >= 0:
        raise CheckFailed("the outputs of an image sum to 1: omit the softmax, cross-entropy includes it")
    if is_close(found.exp().sum(-1), torch.ones(3)):
        raise CheckFailed("these are log probabilities: omit log_softmax, cross-entropy includes it")


def check_images_independent(TinyViT: Answer) -> None:
    """TinyViT: an image's logits do not depend on its batch."""
    model, images = make_model(TinyViT), torch.randn(3, 3, 16, 16)
    require_close(model(images)[:1], model(images[:1]), "an image gets different logits alone and in a batch")


def check_library(TinyViT: Answer) -> None:
    """TinyViT: its logits equal those of the library's ViT with the same weights."""
    model, images = make_model(TinyViT), torch.randn(3, 3, 16, 16)
    require_close(
        model(images),
        library_twin(model)(images),
        "the logits differ from those of the library's ViT with the same weights",
    )


def check_loss(train_step: Answer) -> None:
    """train_step: it returns the cross-entropy of the logits."""
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    require_equal(loss_of_step(train_step, model), math.log(2), "with logits of 0 the loss must be ln 2")
    nn.init.eye_(model.weight)
    logits, labels = 3 * torch.eye(2), torch.tensor([0, 1])
    mistakes = (
        (
            F.cross_entropy(logits.softmax(-1), labels).item(),
            "softmax was taken before cross-entropy, which includes it",
        ),
        (F.cross_entropy(logits, labels, reduction="sum").item(), "the loss is a sum over images: take their mean"),
    )
    nn.init.zeros_(model.bias)
    require_equal(
        loss_of_step(train_step, model),
        F.cross_entropy(logits, labels).item(),
        "the loss is not the cross-entropy",
        mistakes,
    )


def check_step(train_step: Answer) -> None:
    """train_step: weights are updated by the gradient of this step only."""
    model, right, accumulated = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    for copy in (right, accumulated):
        copy.load_state_dict(model.state_dict())
    before = model.weight.detach().clone()
    for _ in range(2):
        loss_of_step(train_step, model)
        descend(right, reset=True)
        descend(accumulated, reset=False)
    mistakes = (
        (before, "the weights do not change: zero_grad() first, then backward(), then step()"),
        (
            accumulated.weight.detach(),
            "gradients accumulate from step to step: zero_grad() is missing, or comes too late",
        ),
    )
    require_close(model.weight.detach(), right.weight.detach(), "after two steps the weights are wrong", mistakes)


def check_learns(TinyViT: Answer, train_step: Answer) -> None:
    """Your ViT learns which quarter of an image is bright."""
    model = TinyViT(depth=2, **SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        require_number(train_step(model, optimizer, *quarters(32)))
    images, labels = quarters(256)
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    if accuracy < 0.9:
        raise CheckFailed(
            f"after 60 steps its accuracy on new images is {accuracy:.0%}, chance is 25 %: are the positions added, is "
            f"the class token read, do the weights change?"
        )


def make_model(TinyViT: Answer) -> Any:
    """Build a model with random parameters, so that every part affects the output."""
    model = TinyViT(depth=2, **SIZES).requires_grad_(False)
    try:
        parts = (model.class_token, model.positions, model.norm.weight, model.norm.bias)
        assert len(model.blocks) == 2
    except (AttributeError, TypeError, AssertionError):
        raise CheckFailed(
            "the parts created by __init__ are missing: the checks need them, by their names", final=True
        ) from None
    for part in parts:
        nn.init.normal_(part)
    return model


def forward_with(
    model: Any,
    images: Tensor,
    *,
    positions: bool = True,
    class_position: bool = True,
    norm: bool = True,
    depth: int = 2,
    class_last: bool = False,
    read: str = "class",
) -> Tensor:
    """Forward pass with one step done differently, to reproduce common mistakes."""
    patches = model.project(patchify(images, (4, 4)))
    token = model.class_token.expand(len(images), -1, -1)
    x = torch.cat([patches, token] if class_last else [token, patches], dim=1)
    if positions:
        x = x + model.positions * (torch.arange(17) >= (0 if class_position else 1))[:, None]
    for block in model.blocks[:depth]:
        x = block(x, None)
    x = model.norm(x) if norm else x
    readouts = {"class": x[:, 0], "mean": x.mean(dim=1), "last": x[:, -1], "first patch": x[:, 1]}
    return model.head(readouts[read])


def library_twin(model: Any) -> ViT:
    """Build the library's ViT with the learner's weights."""
    vit = ViTConfig(**{**SIZES, "image_size": (16, 16), "patch_size": (4, 4), "depth": 2}).build()  # type: ignore[arg-type]
    state = {
        "stem.proj.weight": model.project.weight.reshape(-1, 3, 4, 4),
        "stem.proj.bias": model.project.bias,
        "class_token": model.class_token,
        "position.table": model.positions,
        **{f"blocks.{name}": value for name, value in model.blocks.state_dict().items()},
        **{
            f"{name}.{key}": value
            for name in ("norm", "head")
            for key, value in getattr(model, name).state_dict().items()
        },
    }
    try:
        vit.load_state_dict(state)
    except RuntimeError:
        raise CheckFailed("the parts created by __init__ have changed: keep them as handed out") from None
    return vit


def loss_of_step(train_step: Answer, model: nn.Module) -> float:
    """Loss reported by one step of plain gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return require_number(train_step(model, optimizer, 3 * torch.eye(2), torch.tensor([0, 1])))


def descend(model: nn.Linear, *, reset: bool) -> None:
    """Reference step; without ``reset`` it accumulates onto existing gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if reset:
        optimizer.zero_grad()
    F.cross_entropy(model(3 * torch.eye(2)), torch.tensor([0, 1])).backward()
    optimizer.step()


def quarters(count: int) -> tuple[Tensor, Tensor]:
    """Return noisy images with one bright quarter, and the index of that quarter."""
    labels = torch.randint(4, (count,))
    bright = F.one_hot(labels, 4).float().reshape(-1, 1, 2, 2)
    return 0.5 * torch.randn(count, 3, 16, 16) + 2 * F.interpolate(bright, scale_factor=8), labels
