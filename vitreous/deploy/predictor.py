"""A weights file and pictures in, classes or embeddings out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.pictures import BadPicture, open_picture, standard
from vitreous.data.transforms import transforms
from vitreous.memory import memory_kept
from vitreous.models.base import Backbone
from vitreous.weights.load import load

Picture = str | os.PathLike[str] | Image.Image
T = TypeVar("T")


@dataclass(frozen=True)
class Prediction:
    """The best classes of one picture, best first, with their probabilities."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    indices: tuple[int, ...]

    @property
    def best(self) -> str:
        return self.classes[0]

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in zip(self.classes, self.probabilities, strict=True))


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be used, and why."""

    reason: str


class Predictor:
    """Answers for pictures, prepared as the model's file says.

    >>> predictor = Predictor("cat.safetensors")
    >>> predictor("photo.jpg").best
    >>> predictor.embed("photo.jpg")          # the pooled features, of length 1
    >>> for answer in predictor.predict_many(paths): ...     # batch by batch; embed_many likewise

    ``model`` names the model of a foreign file, which does not tell: ``Predictor("deit.pth", model="deit_tiny_16")``.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Backbone,
        *,
        model: str | None = None,
        top: int = 5,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        if top < 1 or batch_size < 1:
            raise ValueError(f"top and batch_size must be at least 1, got top={top}, batch_size={batch_size}")
        self.model = source if isinstance(source, Backbone) else load(source, model=model)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model.to(self.device).eval()
        self.transform = transforms(self.model)
        self.top = top
        self.batch_size = batch_size

    def __call__(self, picture: Picture) -> Prediction:
        return self.predictions(self.logits(self.prepare(picture)[None]))[0]

    def embed(self, picture: Picture) -> NDArray[np.float32]:
        return self.embeddings(self.prepare(picture)[None])[0]

    def predict_many(self, pictures: Iterable[Picture]) -> Iterator[Prediction | Skipped]:
        """An answer for every picture, in order; one that cannot be opened is skipped with its reason."""
        return self.many(pictures, lambda images: self.predictions(self.logits(images)))

    def embed_many(self, pictures: Iterable[Picture]) -> Iterator[NDArray[np.float32] | Skipped]:
        return self.many(pictures, lambda images: list(self.embeddings(images)))

    def prepare(self, picture: Picture) -> Tensor:
        if isinstance(picture, Image.Image):
            return self.transform(standard(picture))
        if not isinstance(picture, str | os.PathLike):
            raise ValueError(
                f"a picture is a path or a Pillow image, got {type(picture).__name__}; for several, predict_many"
            )
        try:
            return self.transform(open_picture(picture))
        except BadPicture as error:
            raise BadPicture(f"{picture}: {error}", error.reason) from None

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        if self.model.config.num_classes == 0:
            raise ValueError("this model has no classifier (num_classes is 0); embed gives its features")
        return self.model(images.to(self.device)).float().cpu()

    @torch.inference_mode()
    def embeddings(self, images: Tensor) -> NDArray[np.float32]:
        features = self.model.pooled(self.model.features(images.to(self.device)))
        return torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy()

    def predictions(self, logits: Tensor) -> list[Prediction]:
        probabilities, indices = logits.softmax(-1).topk(min(self.top, logits.shape[-1]))
        labels = self.model.spec.labels
        return [
            Prediction(tuple(labels[index] for index in row), tuple(shares), tuple(row))
            for row, shares in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]

    def many(self, pictures: Iterable[Picture], run: Callable[[Tensor], list[T]]) -> Iterator[T | Skipped]:
        """Batch by batch; while the model works on one, threads open the pictures of the next."""
        source = iter(pictures)
        with memory_kept(), ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as threads:
            ahead = [threads.submit(self.try_prepare, item) for item in islice(source, self.batch_size)]
            while ahead:
                batch = [future.result() for future in ahead]
                ahead = [threads.submit(self.try_prepare, item) for item in islice(source, self.batch_size)]
                images = [item for item in batch if isinstance(item, Tensor)]
                answers = iter(run(torch.stack(images)) if images else [])
                yield from (next(answers) if isinstance(item, Tensor) else item for item in batch)

    def try_prepare(self, picture: Picture) -> Tensor | Skipped:
        try:
            return self.prepare(picture)
        except BadPicture as error:
            return Skipped(error.reason)
