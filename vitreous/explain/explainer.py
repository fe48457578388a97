"""How an explanation comes about: a model looks at an image, and is asked why in every way that it can answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.data.image_files import BadImage
from vitreous.data.images import AnyImage, as_image
from vitreous.data.transforms import transforms
from vitreous.explain.attribution import METHODS, OF_ATTENTION, Method, at_rest, cell_size, methods_for
from vitreous.explain.explanation import RANDOM_ORDERS, Answer, Explained, Explanation
from vitreous.explain.faithfulness import deletion, insertion, on_cells
from vitreous.explain.layers import LayerSeen, rollout_by_depth, see_layers, see_norms
from vitreous.explain.lens import logit_lens
from vitreous.explain.maps import Place, denormalized
from vitreous.explain.parameters import first_filters, positions_of
from vitreous.explain.question import Question, ask
from vitreous.explain.record import plain
from vitreous.models import MODELS
from vitreous.models.base import Model
from vitreous.models.engine import Engine
from vitreous.options import check_callable, checked_texts, did_you_mean
from vitreous.weights.load import load

Source = str | os.PathLike[str] | nn.Module
T = TypeVar("T")

#: What ``quick`` leaves out where attention can be shown instead: each asks the model dozens of times.
THOROUGH = ("occlusion", "integrated gradients")


def explain(
    model: Source,
    image: AnyImage,
    *,
    target: str | int | None = None,
    methods: str | Sequence[str] = (),
    quick: bool = False,
    name: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Everything that can be shown about a model's answer for an image, or about another class (``target``).

    ``methods`` are names of ``attribution.METHODS``; by themselves all that can serve the model, with ``quick`` those
    that ask it a few times only. An accelerated ``model`` serves where neither gradients nor attention are needed.
    ``name`` is the model's in the explanation; ``progress`` is told what is being done.
    """
    engine = model if isinstance(model, Engine) else load(model) if not isinstance(model, nn.Module) else plain(model)
    net = engine.model
    if not net.config.num_classes:
        raise ValueError("this model has no classifier (num_classes is 0), so there is no answer to explain")
    chosen = choose_methods(net, checked_texts("methods", methods), quick=quick)
    check_callable("progress", progress)
    number = None if target is None else class_number(net, target)
    like = next(net.parameters())
    pixels = prepare(net, image)[None].to(like.device, like.dtype)
    with at_rest(net):
        explainer = Explainer(engine, pixels, number, steps=10 if quick else 20, tell=progress or (lambda _: None))
        return explainer.explanation(chosen, model=name or name_of(model, net), title=title_of(image))


@dataclass
class Explainer:
    """One model, which is at rest, before one image; ``reasons`` collect what it cannot answer."""

    engine: Engine  # what deletion and insertion, which ask it many times, run on
    image: Float[Tensor, "1 c y x"]
    number: int | None  # of the class that is asked about; None: the likeliest
    steps: int
    tell: Callable[[str], None]
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def net(self) -> Model:
        return self.engine.model

    def explanation(self, chosen: Mapping[str, Method], *, model: str, title: str) -> Explanation:
        question = ask(self.net, self.image, self.number)
        answer = Answer(self.net.spec.labels, question.probabilities, question.target)
        methods = {name: self.judged(name, method, question)[0] for name, method in chosen.items()}
        chance = self.judged("random", METHODS["random"], question, times=RANDOM_ORDERS)
        place = most_important(methods)
        layers = self.layers(place)
        return Explanation(
            model=model,
            title=title,
            image=denormalized(self.image[0], self.net.spec.preprocess),
            answer=answer,
            methods=methods,
            chance=tuple(chance),
            place=place,
            layers=layers,
            rollout=rollout_by_depth(layers),
            norms=see_norms(self.net, self.image),
            lens=self.lens(question),
            positions=self.maybe("positions", lambda: positions_of(self.net)),
            filters=self.maybe("filters", lambda: first_filters(self.net)),
            reasons=self.reasons,
        )

    def judged(self, name: str, method: Method, question: Question, *, times: int = 1) -> list[Explained]:
        """A method's map of the image, several for a method that throws draws, and how it fares."""
        self.tell(name)
        images = self.image.expand(times, -1, -1, -1)
        score = question.score(times, images.device)
        size = (images.shape[2], images.shape[3])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            heat = on_cells(method(self.net, images, score).detach().float(), size, cell_size(self.net, size))
        curves = [curve(self.engine, images, score, heat, steps=self.steps) for curve in (deletion, insertion)]
        return [Explained(*one) for one in zip(heat.cpu(), *(curve.cpu() for curve in curves), strict=True)]

    def layers(self, place: Place) -> dict[str, LayerSeen]:
        self.tell("layers")
        found = self.maybe("attention", lambda: see_layers(self.net, self.image, place))
        layers, left_out = found if found is not None else ({}, {})
        self.reasons |= left_out
        return layers

    def lens(self, question: Question) -> dict[str, Float[Tensor, " k"]]:
        self.tell("logit lens")
        found = logit_lens(self.net, self.image, question.follow)
        return {block: probabilities[0].cpu() for block, probabilities in found.items()}

    def maybe(self, what: str, see: Callable[[], T]) -> T | None:
        """What is seen, or None and the reason."""
        try:
            return see()
        except ValueError as error:
            self.reasons[what] = str(error)
            return None


def most_important(methods: Mapping[str, Explained]) -> Place:
    """The center of the hottest cell of the most faithful map."""
    heat = max(methods.values(), key=lambda method: method.faithfulness).heat
    row, column = divmod(int(heat.argmax()), heat.shape[1])
    return (row + 0.5) / heat.shape[0], (column + 0.5) / heat.shape[1]


def choose_methods(model: Model, names: Sequence[str], *, quick: bool) -> dict[str, Method]:
    """Those that were asked for, or all that can serve the model; random is measured beside them in any case."""
    serving = {name: method for name, method in methods_for(model).items() if name != "random"}
    if not names:
        light = {name: method for name, method in serving.items() if name not in THOROUGH}
        return light if quick and light else serving
    for name in names:
        if name not in METHODS:
            raise ValueError(f"there is no method {name!r}{did_you_mean(name, METHODS)}")
        if name in OF_ATTENTION and name not in serving:
            raise ValueError(f"{name} needs attention between tokens; this model takes {' and '.join(serving)}")
    chosen = {name: METHODS[name] for name in dict.fromkeys(names) if name != "random"}
    if not chosen:
        raise ValueError(f"random is what the others are measured against; name one of {', '.join(serving)} beside it")
    return chosen


def class_number(model: Model, target: str | int) -> int:
    """The number of a class that is given by its name, in upper or lower case, or by that number."""
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise ValueError(f"target is a class's name or number, got {target!r:.80}")
    count, labels = model.config.num_classes, model.spec.labels
    names = {name.casefold(): number for number, name in reversed(list(enumerate(labels)))}
    if isinstance(target, str) and target.strip().casefold() in names:
        return names[target.strip().casefold()]
    if isinstance(target, int) or target.strip().isdecimal():
        if 0 <= int(target) < count:
            return int(target)
        raise ValueError(f"there is no class {target}: the model has {count}, numbered from 0 to {count - 1}")
    if not labels.names:
        raise ValueError(f"the model's classes have no names; give a number from 0 to {count - 1}, not {target!r}")
    raise ValueError(f"there is no class {target!r}{did_you_mean(target, labels)}")


def prepare(model: Model, image: AnyImage) -> Float[Tensor, "c y x"]:
    """The image as the model takes it; one smaller than a single patch has nothing to explain."""
    opened, patch = as_image(image), model.strides[0]
    if opened.height < patch[0] or opened.width < patch[1]:
        reason = (
            f"{opened.width}×{opened.height} pixels are fewer than one patch ({patch[1]}×{patch[0]}); "
            "give a larger image"
        )
        raise BadImage(f"{title_of(image)}: {reason}", reason)
    return transforms(model)(opened)


def title_of(image: AnyImage) -> str:
    return Path(image).name if isinstance(image, str | os.PathLike) else "the image"


def name_of(source: Source, model: Model) -> str:
    """The file's name, or that of the row of the table that the model is built from, or of its family."""
    if not isinstance(source, nn.Module):
        return Path(source).name.removesuffix(".safetensors")
    return next((name for name, config in MODELS.items() if config == model.config), type(model).__name__)
