"""Compute an explanation: run all attribution methods and collect all evidence for one image."""

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
from vitreous.explain.attribution import ATTENTION_METHODS, METHODS, Method, cell_size, frozen_eval, methods_for
from vitreous.explain.evidence import LayerEvidence, collect_layers, collect_norms, depth_rollout
from vitreous.explain.explanation import RANDOM_ORDERS, Answer, Explanation, MethodResult
from vitreous.explain.faithfulness import cell_means, deletion, insertion
from vitreous.explain.lens import logit_lens
from vitreous.explain.maps import RelativePoint, denormalized
from vitreous.explain.parameters import first_filters, positions_of
from vitreous.explain.record import unwrap_model
from vitreous.explain.target import ExplanationTarget, choose_target
from vitreous.models import MODELS
from vitreous.models.base import Model
from vitreous.models.engine import Engine
from vitreous.options import check_callable, checked_texts, did_you_mean
from vitreous.weights.load import load

Source = str | os.PathLike[str] | nn.Module
T = TypeVar("T")

#: Methods that run the model dozens of times; ``quick`` omits them if the model has attention.
SLOW_METHODS = ("occlusion", "integrated gradients")


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
    """Explain a model's prediction for an image: attribution maps, their faithfulness, attention, and logit lens.

    Example::

        explanation = vt.explain("runs/pets/model.safetensors", "photo.jpg")
        explanation.answer.best(), explanation.trusted
        explanation.save("explain.html")

    Args:
        model: A model, or whatever ``vt.load`` accepts. An accelerated model computes the deletion and insertion
            curves; everything else runs on the original model.
        image: A file or an image.
        target: The class to explain, by name or index. Default: the predicted class.
        methods: Names from ``attribution.METHODS``. Default: all that apply to the model.
        quick: Omit methods that run the model dozens of times, and compute coarser curves.
        name: The model's name in the explanation. Default: its file or architecture.
        progress: Called with a description of each step.

    Raises:
        ValueError: If the model has no classifier, or the target or a method is unknown or does not apply.
        BadImage: If the image cannot be read or is smaller than one patch.
    """
    engine: Engine
    if isinstance(model, Engine):
        engine = model
    else:
        engine = unwrap_model(model) if isinstance(model, nn.Module) else load(model)
    net = engine.model
    if not net.config.num_classes:
        raise ValueError("this model has no classifier (num_classes is 0), so there is no prediction to explain")
    chosen = select_methods(net, checked_texts("methods", methods), quick=quick)
    check_callable("progress", progress)
    class_index = None if target is None else resolve_class(net, target)
    like = next(net.parameters())
    pixels = prepare_image(net, image)[None].to(like.device, like.dtype)
    with frozen_eval(net):
        explainer = Explainer(engine, pixels, class_index, 10 if quick else 20, progress or (lambda _: None))
        return explainer.explanation(chosen, model=name or model_name(model, net), title=image_title(image))


@dataclass
class Explainer:
    """Collects the evidence for one image; ``reasons`` explains what is missing. The model must be in eval mode."""

    engine: Engine  # computes deletion and insertion curves; may be accelerated
    image: Float[Tensor, "1 c y x"]
    class_index: int | None  # of the explained class; None: the predicted one
    steps: int
    report_progress: Callable[[str], None]
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def net(self) -> Model:
        return self.engine.model

    def explanation(self, chosen: Mapping[str, Method], *, model: str, title: str) -> Explanation:
        target = choose_target(self.net, self.image, self.class_index)
        answer = Answer(self.net.spec.labels, target.probabilities, target.class_index)
        methods = {name: self.evaluate_method(name, method, target)[0] for name, method in chosen.items()}
        chance = self.evaluate_method("random", METHODS["random"], target, num_copies=RANDOM_ORDERS)
        place = hottest_point(methods)
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
            rollout=depth_rollout(layers),
            norms=collect_norms(self.net, self.image),
            lens=self.lens(target),
            positions=self.collect("positions", lambda: positions_of(self.net)),
            filters=self.collect("filters", lambda: first_filters(self.net)),
            reasons=self.reasons,
        )

    def evaluate_method(
        self, name: str, method: Method, target: ExplanationTarget, *, num_copies: int = 1
    ) -> list[MethodResult]:
        """Compute a method's map with its deletion and insertion curves; several for a method that draws at random."""
        self.report_progress(name)
        images = self.image.expand(num_copies, -1, -1, -1)
        score = target.score(num_copies, images.device)
        size = (images.shape[2], images.shape[3])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            heat = cell_means(method(self.net, images, score).detach().float(), size, cell_size(self.net, size))
        curves = [curve(self.engine, images, score, heat, steps=self.steps) for curve in (deletion, insertion)]
        return [MethodResult(*one) for one in zip(heat.cpu(), *(curve.cpu() for curve in curves), strict=True)]

    def layers(self, place: RelativePoint) -> dict[str, LayerEvidence]:
        self.report_progress("layers")
        found = self.collect("attention", lambda: collect_layers(self.net, self.image, place))
        layers, left_out = found if found is not None else ({}, {})
        self.reasons |= left_out
        return layers

    def lens(self, target: ExplanationTarget) -> dict[str, Float[Tensor, " k"]]:
        self.report_progress("logit lens")
        found = logit_lens(self.net, self.image, target.all_probabilities)
        return {block: probabilities[0].cpu() for block, probabilities in found.items()}

    def collect(self, what: str, compute: Callable[[], T]) -> T | None:
        """Compute some evidence; if it does not apply to the model, store the reason and return None."""
        try:
            return compute()
        except ValueError as error:
            self.reasons[what] = str(error)
            return None


def hottest_point(methods: Mapping[str, MethodResult]) -> RelativePoint:
    """Center of the hottest cell of the most faithful map."""
    heat = max(methods.values(), key=lambda method: method.faithfulness).heat
    row, column = divmod(int(heat.argmax()), heat.shape[1])
    return (row + 0.5) / heat.shape[0], (column + 0.5) / heat.shape[1]


def select_methods(model: Model, names: Sequence[str], *, quick: bool) -> dict[str, Method]:
    """Select the named methods, or all that apply to the model; "random" is always measured as the control."""
    applicable = {name: method for name, method in methods_for(model).items() if name != "random"}
    if not names:
        fast = {name: method for name, method in applicable.items() if name not in SLOW_METHODS}
        return fast if quick and fast else applicable
    for name in names:
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}{did_you_mean(name, METHODS)}")
        if name in ATTENTION_METHODS and name not in applicable:
            raise ValueError(f"{name} needs attention between tokens; this model supports {' and '.join(applicable)}")
    chosen = {name: METHODS[name] for name in dict.fromkeys(names) if name != "random"}
    if not chosen:
        raise ValueError(f"random is only the control for other methods; add one of {', '.join(applicable)}")
    return chosen


def resolve_class(model: Model, target: str | int) -> int:
    """Return the index of a class given by name (case-insensitive) or index."""
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise ValueError(f"target must be the name or index of a class, got {target!r:.80}")
    count, labels = model.config.num_classes, model.spec.labels
    indices = {name.casefold(): index for index, name in reversed(list(enumerate(labels)))}
    if isinstance(target, str) and target.strip().casefold() in indices:
        return indices[target.strip().casefold()]
    if isinstance(target, int) or target.strip().isdecimal():
        if 0 <= int(target) < count:
            return int(target)
        raise ValueError(f"there is no class {target}: the model has {count} classes, indexed 0 to {count - 1}")
    if not labels.names:
        raise ValueError(f"the model's classes have no names; pass an index from 0 to {count - 1}, got {target!r}")
    raise ValueError(f"there is no class {target!r}{did_you_mean(target, labels)}")


def prepare_image(model: Model, image: AnyImage) -> Float[Tensor, "c y x"]:
    """Open and preprocess an image; refuse one smaller than a patch."""
    opened, patch = as_image(image), model.strides[0]
    if opened.height < patch[0] or opened.width < patch[1]:
        reason = (
            f"{opened.width}×{opened.height} pixels is smaller than one patch ({patch[1]}×{patch[0]}); "
            "give a larger image"
        )
        raise BadImage(f"{image_title(image)}: {reason}", reason)
    return transforms(model)(opened)


def image_title(image: AnyImage) -> str:
    return Path(image).name if isinstance(image, str | os.PathLike) else "the image"


def model_name(source: Source, model: Model) -> str:
    """The file name of a source; of a model, the registered name of its config, or its class."""
    if not isinstance(source, nn.Module):
        return Path(source).name.removesuffix(".safetensors")
    return next((name for name, config in MODELS.items() if config == model.config), type(model).__name__)
