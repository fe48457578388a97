"""A model and images in, typed predictions or embeddings out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.pictures import BadPicture, open_picture, standard
from vitreous.data.transforms import transforms
from vitreous.data.view import View
from vitreous.deploy.accelerate import Accelerated, accelerate
from vitreous.deploy.engine import Wanted, find_engine, sharing_copy
from vitreous.memory import memory_kept
from vitreous.models.engine import Engine
from vitreous.samples import Inputs
from vitreous.tasks.base import decoder_of
from vitreous.tasks.predictions import Prediction

AnyImage = str | os.PathLike[str] | Image.Image
Seen = tuple[Tensor, View]
T = TypeVar("T")


@dataclass(frozen=True)
class Skipped:
    """An image that could not be used, and why."""

    reason: str


class Predictor:
    """Predictions for images, prepared and decoded as the model's file says.

    >>> predictor = Predictor("cat.safetensors")
    >>> predictor("photo.jpg").best
    >>> predictor.embed("photo.jpg")          # the pooled features, of length 1
    >>> for found in predictor.predict_many(paths): ...     # batch by batch; embed_many likewise

    ``source`` is a weights file, a model, or one that was accelerated; with ``engine="auto"`` a model on a CPU is
    accelerated when the first batch comes. ``model`` names the model of a foreign file, which does not tell:
    ``Predictor("deit.pth", model="deit_tiny_16")``.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Engine,
        *,
        model: str | None = None,
        engine: Wanted = "eager",
        top: int = 5,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        if top < 1 or batch_size < 1:
            raise ValueError(f"top and batch_size must be at least 1, got top={top}, batch_size={batch_size}")
        if engine not in get_args(Wanted):
            raise ValueError(f"engine must be one of {', '.join(get_args(Wanted))}, got {engine!r}")
        self.engine = find_engine(source, model=model)
        self.model, self.top, self.batch_size = self.engine.model, top, batch_size
        self.embedder: Engine | None = None
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.accelerates = engine == "auto" and self.device.type == "cpu" and self.engine is self.model
        if self.engine is self.model:
            self.model.to(self.device).eval()
        self.transform = transforms(self.model)

    def __call__(self, image: AnyImage) -> Prediction:
        return self.predictions([self.prepare(image)])[0]

    def embed(self, image: AnyImage) -> NDArray[np.float32]:
        return self.embeddings([self.prepare(image)])[0]

    def predict_many(self, images: Iterable[AnyImage]) -> Iterator[Prediction | Skipped]:
        """A prediction for every image, in order; one that cannot be opened is skipped with its reason."""
        return self.many(images, self.predictions)

    def embed_many(self, images: Iterable[AnyImage]) -> Iterator[NDArray[np.float32] | Skipped]:
        return self.many(images, self.embeddings)

    def prepare(self, image: AnyImage) -> Seen:
        """What the model sees of an image, and how to lay its predictions back onto it."""
        if isinstance(image, Image.Image):
            return self.transform.seen(standard(image))
        if not isinstance(image, str | os.PathLike):
            raise ValueError(
                f"an image is a path or a Pillow image, got {type(image).__name__}; for several, predict_many"
            )
        try:
            return self.transform.seen(open_picture(image))
        except BadPicture as error:
            raise BadPicture(f"{image}: {error}", error.reason) from None

    @torch.inference_mode()
    def predictions(self, seen: Sequence[Seen]) -> Sequence[Prediction]:
        if self.model.config.num_classes == 0:
            raise ValueError("this model has no classifier (num_classes is 0); embed gives its features")
        decoder = decoder_of(self.model.spec)
        images = torch.stack([image for image, _ in seen]).to(self.device)
        if self.accelerates:
            self.engine, self.accelerates = accelerate(self.model, images), False
        outputs = self.engine.outputs(Inputs(images))
        return decoder.decode(outputs, self.model.spec, [view for _, view in seen], top=self.top)

    @torch.inference_mode()
    def embeddings(self, seen: Sequence[Seen]) -> Sequence[NDArray[np.float32]]:
        images = torch.stack([image for image, _ in seen]).to(self.device)
        if self.embedder is None:
            self.embedder = self.make_embedder(images)
        features = self.embedder.outputs(Inputs(images))["class"]
        return list(torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy())

    def make_embedder(self, images: Tensor) -> Engine:
        """The backbone without its heads, accelerated where the model is."""
        backbone = sharing_copy(self.model.backbone)
        backbone.reset_head(0)
        backbone.eval()
        if len(backbone.head_names) > 1:
            return backbone
        if isinstance(self.engine, Accelerated):
            return self.engine.likewise(backbone, images)
        return accelerate(backbone, images) if self.accelerates else backbone

    def many(self, images: Iterable[AnyImage], run: Callable[[Sequence[Seen]], Sequence[T]]) -> Iterator[T | Skipped]:
        """Batch by batch; while the model works on one, threads open the images of the next."""
        source = iter(images)
        with memory_kept(), ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as threads:
            ahead = [threads.submit(self.try_prepare, item) for item in islice(source, self.batch_size)]
            while ahead:
                batch = [future.result() for future in ahead]
                ahead = [threads.submit(self.try_prepare, item) for item in islice(source, self.batch_size)]
                seen = [item for item in batch if not isinstance(item, Skipped)]
                found = iter(run(seen) if seen else [])
                yield from (item if isinstance(item, Skipped) else next(found) for item in batch)

    def try_prepare(self, image: AnyImage) -> Seen | Skipped:
        try:
            return self.prepare(image)
        except BadPicture as error:
            return Skipped(error.reason)
