"""Checks of exercise 10."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.lab.exercises.checking import Answer, Wrong, agree, alike, blame, equal, numbered, shaped
from vitreous.layers.patch import patchify
from vitreous.models.vit import ViT, ViTConfig

SIZES = {"image_size": 16, "patch_size": 4, "dim": 32, "num_heads": 4, "num_classes": 4}


def check_shape(TinyViT: Answer) -> None:
    """TinyViT: the shape is (b, classes)."""
    mistakes = {
        (3, 17, 4): "the head read all tokens: give it the class token alone, x[:, 0]",
        (3, 16, 4): "the head read all patches: give it the class token alone",
        (4,): "the images are gone: x[:, 0] is token 0 of every image, x[0] is the first image",
        (17, 4): "x[0] is the first image; x[:, 0] is token 0 of every image",
        (3, 32): "the head is missing",
    }
    shaped(made(TinyViT)(torch.randn(3, 3, 16, 16)), (3, 4), "(b, classes)", mistakes)


def check_every_part_counts(TinyViT: Answer) -> None:
    """TinyViT: no part is left out."""
    model, images = made(TinyViT), torch.randn(3, 3, 16, 16)
    mistakes = (
        (
            through(model, images, positions=False),
            "the positions are not added: the model cannot know where a patch lies",
        ),
        (
            through(model, images, norm=False),
            "the final norm is missing: with Pre-LN nothing else normalizes the stream",
        ),
        (through(model, images, depth=0), "the blocks are not used"),
        (through(model, images, depth=1), "only the first block is used: go through all of them"),
        (
            through(model, images, class_position=False),
            "the positions are added to patches only: the class token has a position too, the first one",
        ),
    )
    blame(model(images), mistakes)


def check_class_token(TinyViT: Answer) -> None:
    """TinyViT: the class token stands first, and it alone is read."""
    model, images = made(TinyViT), torch.randn(3, 3, 16, 16)
    mistakes = (
        (through(model, images, read="mean"), "the mean of all tokens is read; read token 0"),
        (through(model, images, read="last"), "the last token is read, which is a patch; read token 0"),
        (through(model, images, read="first patch"), "a patch is read, token 1: the class token is token 0"),
        (
            through(model, images, class_last=True),
            "the class token stands last and token 0, a patch, is read: put it in front",
        ),
        (
            through(model, images, class_last=True, read="last"),
            "the class token stands last: its position is the first one, so put it in front",
        ),
    )
    blame(model(images), mistakes)


def check_logits(TinyViT: Answer) -> None:
    """TinyViT: logits come out, not probabilities."""
    found = made(TinyViT)(torch.randn(3, 3, 16, 16))
    if alike(found.sum(-1), torch.ones(3)) and found.min() >= 0:
        raise Wrong("the outputs of an image sum to 1: leave out the softmax, cross-entropy has its own")
    if alike(found.exp().sum(-1), torch.ones(3)):
        raise Wrong("these are logarithms of probabilities: leave out log_softmax, cross-entropy has its own")


def check_images_apart(TinyViT: Answer) -> None:
    """TinyViT: an image's logits do not depend on its batch."""
    model, images = made(TinyViT), torch.randn(3, 3, 16, 16)
    agree(model(images)[:1], model(images[:1]), "alone and in a batch an image gets different logits")


def check_library(TinyViT: Answer) -> None:
    """TinyViT: with the same weights the library's ViT says the same."""
    model, images = made(TinyViT), torch.randn(3, 3, 16, 16)
    agree(model(images), twin(model)(images), "the logits differ from those of the library's ViT with the same weights")


def check_loss(train_step: Answer) -> None:
    """train_step: it returns the cross-entropy of the logits."""
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    equal(stepped(train_step, model), math.log(2), "with logits of 0 the loss must be ln 2")
    nn.init.eye_(model.weight)
    logits, labels = 3 * torch.eye(2), torch.tensor([0, 1])
    mistakes = (
        (
            F.cross_entropy(logits.softmax(-1), labels).item(),
            "softmax was taken before cross-entropy, which does that itself",
        ),
        (F.cross_entropy(logits, labels, reduction="sum").item(), "the loss is a sum over images: take their mean"),
    )
    nn.init.zeros_(model.bias)
    equal(
        stepped(train_step, model),
        F.cross_entropy(logits, labels).item(),
        "the loss is not the cross-entropy",
        mistakes,
    )


def check_step(train_step: Answer) -> None:
    """train_step: weights move along the gradient of this step, and of no other."""
    model, right, piled = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    for copy in (right, piled):
        copy.load_state_dict(model.state_dict())
    before = model.weight.detach().clone()
    for _ in range(2):
        stepped(train_step, model)
        descend(right, forget=True)
        descend(piled, forget=False)
    mistakes = (
        (before, "the weights do not move: zero_grad() first, then backward(), then step()"),
        (piled.weight.detach(), "gradients pile up from step to step: zero_grad() is missing, or comes too late"),
    )
    agree(model.weight.detach(), right.weight.detach(), "after two steps the weights are wrong", mistakes)


def check_learns(TinyViT: Answer, train_step: Answer) -> None:
    """Your ViT learns which quarter of an image is bright."""
    model = TinyViT(depth=2, **SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        numbered(train_step(model, optimizer, *quarters(32)))
    images, labels = quarters(256)
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    if accuracy < 0.9:
        raise Wrong(
            f"after 60 steps it names {accuracy:.0%} of new images rightly, guessing gives 25 %: do positions reach "
            f"the tokens, is the class token read, do the weights move?"
        )


def made(TinyViT: Answer) -> Any:
    """A model in which every part shows: the learned starting values are too small for that."""
    model = TinyViT(depth=2, **SIZES).requires_grad_(False)
    try:
        parts = (model.class_token, model.positions, model.norm.weight, model.norm.bias)
        assert len(model.blocks) == 2
    except (AttributeError, TypeError, AssertionError):
        raise Wrong("the parts that __init__ made are gone: the checks need them, by their names", final=True) from None
    for part in parts:
        nn.init.normal_(part)
    return model


def through(
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
    """The way through the model with one step done otherwise, as people do by mistake."""
    patches = model.project(patchify(images, (4, 4)))
    token = model.class_token.expand(len(images), -1, -1)
    x = torch.cat([patches, token] if class_last else [token, patches], dim=1)
    if positions:
        x = x + model.positions * (torch.arange(17) >= (0 if class_position else 1))[:, None]
    for block in model.blocks[:depth]:
        x = block(x, None)
    x = model.norm(x) if norm else x
    places = {"class": x[:, 0], "mean": x.mean(dim=1), "last": x[:, -1], "first patch": x[:, 1]}
    return model.head(places[read])


def twin(model: Any) -> ViT:
    """The library's ViT with the learner's weights."""
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
        raise Wrong("the parts that __init__ made have changed: leave them as they were handed out") from None
    return vit


def stepped(train_step: Answer, model: nn.Module) -> float:
    """The loss that one step with plain gradient descent reports."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return numbered(train_step(model, optimizer, 3 * torch.eye(2), torch.tensor([0, 1])))


def descend(model: nn.Linear, *, forget: bool) -> None:
    """The same step done rightly; without ``forget`` on top of the gradients that are there."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if forget:
        optimizer.zero_grad()
    F.cross_entropy(model(3 * torch.eye(2)), torch.tensor([0, 1])).backward()
    optimizer.step()


def quarters(count: int) -> tuple[Tensor, Tensor]:
    """Noisy images of which one quarter is bright, and which quarter it is."""
    labels = torch.randint(4, (count,))
    bright = F.one_hot(labels, 4).float().reshape(-1, 1, 2, 2)
    return 0.5 * torch.randn(count, 3, 16, 16) + 2 * F.interpolate(bright, scale_factor=8), labels
