"""The contract that every model keeps, so that training, cost, recording, saving and export need to know only this.

outputs  = model.outputs(inputs)      what a task works with, by name: {"class": (b, k)}, {"masks": (b, k, y, x)} …
model.blocks                        the repeated units in order: what is checkpointed, sharded, compiled;
                                      "blocks.3" names the fourth of them, in every family
model.config, model.spec              how it was built; how images are prepared, what classes and outputs mean
model.edit(edit), model.edits         a change of its structure, remembered: saved with it and replayed by load

A backbone is a model that classifies, and whose features others build on:

logits   = model(images)              one tensor (b, classes), or (b, d) when num_classes is 0
features = model.features(images)     tokens with their grid, and maps with strides, finest first
heads    = model.heads(features)      every head's output by name; forward averages them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.layers.init import trunc_normal_
from vitreous.layers.mixer import MixerContext
from vitreous.layers.position import Grid
from vitreous.models.edit import Edit
from vitreous.options import Options
from vitreous.samples import Inputs
from vitreous.spec import Labels, Preprocess, Size, Spec

#: Options of a config that hold for all of its mixers.
FOR_MIXERS = ("qkv_bias", "drop_rate", "attention_drop_rate")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Options, ABC):
    """How to build one model. Families add their fields; every instance checks its own values."""

    image_size: Size = (224, 224)
    num_channels: int = 3
    num_classes: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_channels < 1:
            raise ValueError(f"num_channels must be at least 1, got {self.num_channels}")

    @abstractmethod
    def build(self) -> Model:
        """The model, freshly initialized."""

    @classmethod
    def given(cls, name: str, value: Any) -> Any:
        """A config by the name of a model, as it is, or as its JSON, which says its family."""
        if isinstance(value, cls):
            return value
        from vitreous.models import FAMILIES, find_config  # here, since they import all models and these this file

        if isinstance(value, str):
            return find_config(value)
        settings: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {}
        family = settings.pop("family", None)
        if family not in FAMILIES:
            raise ValueError(f"{name} must be a model's name, its config or the JSON of one, got {value!r:.80}")
        return cls.given(name, FAMILIES[family].config().override(**settings))

    def to_json(self) -> dict[str, Any]:
        """Every field; a config inside of this one says its family."""
        from vitreous.models import find_family

        described = super().to_json()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, ModelConfig) and (family := find_family(value)) is not None:
                described[field.name] = {"family": family.name, **described[field.name]}
        return described


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig, ABC):
    """How to build one backbone."""

    @abstractmethod
    def build(self) -> Backbone: ...

    def context(self, *, dim: int, num_heads: int, grid: Grid, **where: Any) -> MixerContext:
        """What a mixer of this model must know: the arguments, and the rates and biases that the config has."""
        own = {name: getattr(self, name) for name in FOR_MIXERS if hasattr(self, name)}
        return MixerContext(dim=dim, num_heads=num_heads, grid=grid, **own, **where)


@dataclass(frozen=True)
class FeatureMap:
    """Features laid out as an image: ``values`` (b, c, y, x), one cell per ``stride`` pixels."""

    values: Float[Tensor, "b c y x"]
    stride: Size


@dataclass(frozen=True)
class Features:
    """What a backbone sees: final tokens (``num_prefix`` first, then the grid), and its maps from fine to coarse.

    ``grid`` is None, and ``maps`` empty, when training has dropped tokens and no grid is left.
    """

    tokens: Float[Tensor, "b n d"]
    grid: Grid | None
    num_prefix: int
    maps: tuple[FeatureMap, ...]


class Model(nn.Module, ABC):
    """Images in, named outputs out. A family implements :meth:`outputs` and :attr:`blocks`, and owns its heads."""

    #: What it is built for, and the output that ``forward`` gives where it is a single tensor.
    task: str = "classify"
    main_output: str = "class"
    #: Names of the attributes that hold a head, whose parameters depend on the classes.
    head_names: tuple[str, ...] = ("head",)
    #: Stride in pixels and width of each map that ``features`` returns, known without running the model.
    strides: tuple[Size, ...]
    dims: tuple[int, ...]
    #: What was done to the model since its config built it, in order.
    edits: tuple[Edit, ...] = ()

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        preprocess = Preprocess(image_size=config.image_size).with_channels(config.num_channels)
        self.spec = Spec(preprocess, task=self.task)

    @abstractmethod
    def outputs(self, inputs: Inputs) -> dict[str, Tensor]: ...

    if TYPE_CHECKING:  # a child module here, a property there

        @property
        def blocks(self) -> nn.ModuleList | list[nn.Module]:
            """The repeated units in order."""

    @property
    def model(self) -> Model:
        """Itself: a model is the plainest engine to run it with (``deploy/engine.py``)."""
        return self

    @property
    @abstractmethod
    def backbone(self) -> Backbone:
        """The part that turns images into features: itself, for a model that is nothing else."""

    @abstractmethod
    def make_head(self, num_classes: int) -> nn.Module: ...

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        return self.backbone.features(images)

    def read_tokens(self, num_prefix: int) -> slice:
        """The tokens that the heads read, of so many prefix tokens and the cells behind them."""
        return slice(num_prefix, None)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Any:
        """The outputs for images alone; a family may return its main output instead."""
        return self.outputs(Inputs(images))

    def edit(self, edit: Edit) -> None:
        """Change the structure in place, and remember how, so that files describe it."""
        edit.apply(self)
        self.edits += (edit,)

    def reset_head(self, num_classes: int) -> None:
        """A fresh classifier in every head, with classes yet to be named; 0 classes leave the pooled features."""
        self.config = self.config.override(num_classes=num_classes)
        like = next(self.parameters())
        for name in self.head_names:
            setattr(self, name, self.make_head(num_classes).to(like.device, like.dtype))
        self.spec = replace(self.spec, labels=Labels())

    def name_classes(self, names: Iterable[str]) -> None:
        """Remember what the classes are called; one name per class."""
        labels = Labels(tuple(names))
        labels.check(self.config.num_classes)
        self.spec = replace(self.spec, labels=labels)

    def check_images(self, images: Tensor, smallest: Size) -> None:
        """One line that says what is wrong with a batch, before some layer deep inside does."""
        if images.ndim != 4:
            raise ValueError(f"images must have shape (batch, channels, height, width), got {tuple(images.shape)}")
        if images.shape[1] != self.config.num_channels:
            raise ValueError(
                f"the model takes {self.config.num_channels} channels, the images have {images.shape[1]}; "
                f"convert them, or build the model with num_channels={images.shape[1]}"
            )
        if not images.is_floating_point():
            raise ValueError(f"images must be floating point, got {images.dtype}; vt.transforms(model) prepares them")
        if images.shape[2] < smallest[0] or images.shape[3] < smallest[1]:
            raise ValueError(
                f"images of {images.shape[2]}×{images.shape[3]} pixels are smaller than one patch "
                f"({smallest[0]}×{smallest[1]}); enlarge them or choose a smaller patch_size"
            )


class Backbone(Model):
    """A classifier on features. A family implements :meth:`features`, :meth:`pooled` and :attr:`blocks`, and owns a
    ``head``."""

    head: nn.Module
    config: Config

    @abstractmethod
    def features(self, images: Float[Tensor, "b c y x"]) -> Features: ...

    @abstractmethod
    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        """One vector per image: what the classifier sees."""

    @property
    def backbone(self) -> Backbone:
        return self

    def read_tokens(self, num_prefix: int) -> slice:
        """The tokens that the heads read, of so many prefix tokens and the cells behind them."""
        return slice(0, 1) if num_prefix else slice(0, None)

    def heads(self, features: Features) -> dict[str, Float[Tensor, "b k"]]:
        return {"class": self.head(self.pooled(features))}

    def outputs(self, inputs: Inputs) -> dict[str, Float[Tensor, "b k"]]:
        return self.heads(self.features(inputs.images))

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        return combine(self.outputs(Inputs(images)))

    def make_head(self, num_classes: int) -> nn.Module:
        return classifier(self.dims[-1], num_classes)


def combine(heads: dict[str, Float[Tensor, "b k"]]) -> Float[Tensor, "b k"]:
    """The mean of several heads' logits."""
    first, *others = heads.values()
    return sum(others, first) / (1 + len(others)) if others else first


def classifier(dim: int, num_classes: int) -> nn.Module:
    if num_classes == 0:
        return nn.Identity()
    head = nn.Linear(dim, num_classes)
    trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def check_stages(num_stages: int, *, depths: tuple[int, ...], **others: tuple[float, ...]) -> None:
    """Rows of numbers that a config gives stage by stage: as many as there are stages, and no endless network."""
    for name, row in {"depths": depths, **others}.items():
        if len(row) != num_stages:
            raise ValueError(f"{name} must have {num_stages} numbers, one per stage; got {row}")
    if sum(depths) > 1024:
        raise ValueError(f"depths must be at most 1024 blocks in all, got {sum(depths)}")


def drop_path_rates(last: float, depths: tuple[int, ...]) -> list[list[float]]:
    """One rate per block of each stage, growing linearly from 0 at the very first to ``last`` at the very last."""
    rates = iter(last * index / max(1, sum(depths) - 1) for index in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]
