"""Base classes of all models: the interface that training, recording, saving and export rely on.

Every :class:`Model` has

    outputs = model.outputs(inputs)       outputs by name: {"class": (b, k)}, {"masks": (b, k, y, x)}, …
    model.blocks                          the repeated blocks in order: units of checkpointing, sharding, compilation;
                                          "blocks.3" names the fourth one in every family
    model.config, model.spec              how it was built; image preprocessing, classes and task
    model.edit(edit), model.edits         changes to its structure, which are saved with it and replayed by load

A :class:`Backbone` is an image classifier whose features other models build on:

    logits   = model(images)              (b, classes), or (b, d) if num_classes is 0
    features = model.features(images)     tokens with their grid, and feature maps with strides, finest first
    heads    = model.heads(features)      the output of each head by name; forward averages them
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

#: Fields of a config that apply to all of its mixers.
FOR_MIXERS = ("qkv_bias", "drop_rate", "attention_drop_rate")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Options, ABC):
    """Configuration of a model: a frozen dataclass that validates its fields.

    Subclass it to define a model of your own: add fields and implement :meth:`build`.

    Attributes:
        image_size: (height, width) that the model is built for; models accept other sizes at run time.
        num_channels: Number of image channels.
        num_classes: Number of classes; 0 for a model without classifier, which returns pooled features.
    """

    image_size: Size = (224, 224)
    num_channels: int = 3
    num_classes: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_channels < 1:
            raise ValueError(f"num_channels must be at least 1, got {self.num_channels}")

    @abstractmethod
    def build(self) -> Model:
        """Create the model with randomly initialized weights."""

    @classmethod
    def given(cls, name: str, value: Any) -> Any:
        """Parse a config: an instance, the name of a model, or JSON with its ``family``."""
        if isinstance(value, cls):
            return value
        from vitreous.models import FAMILIES, find_config  # avoids a circular import

        if isinstance(value, str):
            return find_config(value)
        settings: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {}
        family = settings.pop("family", None)
        if family not in FAMILIES:
            raise ValueError(f"{name} must be the name of a model, a config or its JSON, got {value!r:.80}")
        return cls.given(name, FAMILIES[family].config().override(**settings))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; nested model configs include their family."""
        from vitreous.models import find_family

        described = super().to_json()
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, ModelConfig) and (family := find_family(value)) is not None:
                described[field.name] = {"family": family.name, **described[field.name]}
        return described


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig, ABC):
    """Configuration of a backbone."""

    @abstractmethod
    def build(self) -> Backbone:
        """Create the backbone with randomly initialized weights."""

    def context(self, *, dim: int, num_heads: int, grid: Grid, **options: Any) -> MixerContext:
        """Create the context of a mixer from the arguments and the rates and biases of this config."""
        shared = {name: getattr(self, name) for name in FOR_MIXERS if hasattr(self, name)}
        return MixerContext(dim=dim, num_heads=num_heads, grid=grid, **shared, **options)


@dataclass(frozen=True)
class FeatureMap:
    """A feature map ``values`` (b, c, y, x) with one cell per ``stride`` (vertical, horizontal) pixels."""

    values: Float[Tensor, "b c y x"]
    stride: Size


@dataclass(frozen=True)
class Features:
    """Features of a backbone, as returned by :meth:`Backbone.features`.

    Attributes:
        tokens: Final tokens: ``num_prefix`` prefix tokens (class token, …), then the cells in raster order.
        grid: (rows, columns) of the cells; None if token dropping removed some of them in training.
        num_prefix: Number of prefix tokens.
        maps: Feature maps from fine to coarse; empty if ``grid`` is None.
    """

    tokens: Float[Tensor, "b n d"]
    grid: Grid | None
    num_prefix: int
    maps: tuple[FeatureMap, ...]


class Model(nn.Module, ABC):
    """Base class of all models: images in, named outputs out.

    Subclasses implement :meth:`outputs`, :attr:`blocks`, :attr:`backbone` and :meth:`make_head`.
    """

    #: The task that the model is built for, and the name of the output that ``forward`` returns as a single tensor.
    task: str = "classify"
    main_output: str = "class"
    #: Names of the attributes that are heads, whose parameters depend on the number of classes.
    head_names: tuple[str, ...] = ("head",)
    #: Stride in pixels and number of channels of each feature map, known without running the model.
    strides: tuple[Size, ...]
    dims: tuple[int, ...]
    #: Edits applied to the model since its config built it, in order.
    edits: tuple[Edit, ...] = ()

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        preprocess = Preprocess(image_size=config.image_size).with_channels(config.num_channels)
        self.spec = Spec(preprocess, task=self.task)

    @abstractmethod
    def outputs(self, inputs: Inputs) -> dict[str, Tensor]:
        """Compute all outputs by name."""

    if TYPE_CHECKING:  # a child module in some families, a property in others

        @property
        def blocks(self) -> nn.ModuleList | list[nn.Module]:
            """The repeated blocks in order."""

    @property
    def model(self) -> Model:
        """The model itself, which makes it an :class:`~vitreous.models.engine.Engine`."""
        return self

    @property
    @abstractmethod
    def backbone(self) -> Backbone:
        """The backbone that computes features; for a backbone, the model itself."""

    @abstractmethod
    def make_head(self, num_classes: int) -> nn.Module:
        """Create a randomly initialized head."""

    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        """Compute the features of the backbone."""
        return self.backbone.features(images)

    def read_tokens(self, num_prefix: int) -> slice:
        """Return the slice of final tokens that the heads read, given ``num_prefix`` prefix tokens before the cells."""
        return slice(num_prefix, None)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Any:
        """Compute the outputs for images; a family may return its main output instead."""
        return self.outputs(Inputs(images))

    def edit(self, edit: Edit) -> None:
        """Apply a structural edit in place and record it in ``edits``, so that saved files can be rebuilt."""
        edit.apply(self)
        self.edits += (edit,)

    def reset_head(self, num_classes: int) -> None:
        """Replace every head by a randomly initialized one and clear the class names.

        With ``num_classes=0`` the model returns pooled features.
        """
        self.config = self.config.override(num_classes=num_classes)
        like = next(self.parameters())
        for name in self.head_names:
            setattr(self, name, self.make_head(num_classes).to(like.device, like.dtype))
        self.spec = replace(self.spec, labels=Labels())

    def name_classes(self, names: Iterable[str]) -> None:
        """Set the names of the classes, one per class, in ``spec.labels``."""
        labels = Labels(tuple(names))
        labels.check(self.config.num_classes)
        self.spec = replace(self.spec, labels=labels)

    def check_images(self, images: Tensor, smallest: Size) -> None:
        """Check shape, channels, dtype and size of a batch, and raise a ValueError with a clear message."""
        if images.ndim != 4:
            raise ValueError(f"images must have shape (batch, channels, height, width), got {tuple(images.shape)}")
        if images.shape[1] != self.config.num_channels:
            raise ValueError(
                f"the model takes {self.config.num_channels} channels, the images have {images.shape[1]}; "
                f"convert them, or create the model with num_channels={images.shape[1]}"
            )
        if not images.is_floating_point():
            raise ValueError(f"images must be floating point, got {images.dtype}; vt.transforms(model) prepares them")
        if images.shape[2] < smallest[0] or images.shape[3] < smallest[1]:
            raise ValueError(
                f"images of {images.shape[2]}×{images.shape[3]} pixels are smaller than one patch "
                f"({smallest[0]}×{smallest[1]}); enlarge them or choose a smaller patch_size"
            )


class Backbone(Model):
    """An image classifier whose features other models build on.

    Subclasses implement :meth:`features`, :meth:`pooled` and :attr:`blocks`, and set ``head``.
    """

    head: nn.Module
    config: Config

    @abstractmethod
    def features(self, images: Float[Tensor, "b c y x"]) -> Features:
        """Compute final tokens and feature maps; see :class:`Features`."""

    @abstractmethod
    def pooled(self, features: Features) -> Float[Tensor, "b d"]:
        """Pool features to one vector per image, the input of the classifier."""

    @property
    def backbone(self) -> Backbone:
        return self

    def read_tokens(self, num_prefix: int) -> slice:
        """Return the slice of final tokens that the heads read, given ``num_prefix`` prefix tokens before the cells."""
        return slice(0, 1) if num_prefix else slice(0, None)

    def heads(self, features: Features) -> dict[str, Float[Tensor, "b k"]]:
        """Compute the output of each head by name."""
        return {"class": self.head(self.pooled(features))}

    def outputs(self, inputs: Inputs) -> dict[str, Float[Tensor, "b k"]]:
        return self.heads(self.features(inputs.images))

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Compute logits, averaged over the heads; pooled features if ``num_classes`` is 0."""
        return mean_logits(self.outputs(Inputs(images)))

    def make_head(self, num_classes: int) -> nn.Module:
        return classifier(self.dims[-1], num_classes)


def mean_logits(heads: dict[str, Float[Tensor, "b k"]]) -> Float[Tensor, "b k"]:
    """Average the logits of several heads."""
    first, *others = heads.values()
    return sum(others, first) / (1 + len(others)) if others else first


def classifier(dim: int, num_classes: int) -> nn.Module:
    """Create a linear classifier with small random weights, or the identity for 0 classes."""
    if num_classes == 0:
        return nn.Identity()
    head = nn.Linear(dim, num_classes)
    trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def check_stages(num_stages: int, *, depths: tuple[int, ...], **others: tuple[float, ...]) -> None:
    """Check that per-stage fields have one number per stage, and that the depth is reasonable."""
    for name, row in {"depths": depths, **others}.items():
        if len(row) != num_stages:
            raise ValueError(f"{name} must have {num_stages} numbers, one per stage; got {row}")
    if sum(depths) > 1024:
        raise ValueError(f"depths must be at most 1024 blocks in all, got {sum(depths)}")


def drop_path_rates(last: float, depths: tuple[int, ...]) -> list[list[float]]:
    """Compute the stochastic-depth rate of each block per stage, linear from 0 at the first to ``last`` at the last."""
    rates = iter(last * index / max(1, sum(depths) - 1) for index in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]
