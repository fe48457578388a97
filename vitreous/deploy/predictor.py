"""Predict and embed images in any form: paths, folders, Pillow images, arrays, tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.image_files import BadImage, find_images
from vitreous.data.images import AnyImage, as_image, as_list
from vitreous.data.transforms import transforms
from vitreous.data.view import View
from vitreous.deploy.accelerate import Accelerated, accelerate
from vitreous.deploy.engine import EngineMode, copy_sharing_weights, resolve_engine
from vitreous.memory import retain_freed_memory
from vitreous.models.engine import Engine
from vitreous.options import checked_int
from vitreous.samples import Inputs
from vitreous.tasks.base import find_decoder
from vitreous.tasks.predictions import Prediction

Images = str | os.PathLike[str] | NDArray[Any] | Tensor | Iterable[AnyImage]
PreparedImage = tuple[Tensor, View]
T = TypeVar("T")


@dataclass(frozen=True)
class Skipped:
    """Stands for an image that could not be read, with the reason."""

    reason: str


class Predictor:
    """Predict or embed images, with the preprocessing and the task of the model's spec.

    >>> predictor = Predictor("cat.safetensors")
    >>> predictor("photo.jpg").best
    >>> predictor([image, array, tensor])     # a list of predictions
    >>> predictor.embed("photo.jpg")          # the pooled features, normalized to length 1
    >>> for found in predictor.predict_many("photos/*.jpg"): ...     # batch by batch; see also embed_many

    An image is a path, a Pillow image, an array (y, x) or (y, x, c), or a tensor (c, y, x); arrays and tensors hold
    bytes, or floats from 0 to 1, and are not normalized. A list of images, or an array or tensor with four axes,
    returns a list.

    Args:
        source: A weights file, a model, or an accelerated model.
        model: The model's name, for a third-party checkpoint: ``Predictor("deit.pth", model="deit_tiny_16")``.
        engine: "eager", or "auto" to accelerate a model on a CPU with the first batch.
        top: Number of classes in a prediction.
        batch_size: Number of images per forward pass.
        device: Where to run; by default CUDA if available, else the CPU.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Engine,
        *,
        model: str | None = None,
        engine: EngineMode = "eager",
        top: int = 5,
        batch_size: int = 32,
        device: str | torch.device | None = None,
    ) -> None:
        top, batch_size = checked_int("top", top), checked_int("batch_size", batch_size)
        if engine not in get_args(EngineMode):
            raise ValueError(f"engine must be one of {', '.join(get_args(EngineMode))}, got {engine!r}")
        self.engine = resolve_engine(source, model=model)
        self.model, self.top, self.batch_size = self.engine.model, top, batch_size
        self.embedder: Engine | None = None
        self.device = find_device(device)
        self.accelerates = engine == "auto" and self.device.type == "cpu" and self.engine is self.model
        if self.engine is self.model:
            self.model.to(self.device).eval()
        self.transform = transforms(self.model)

    @overload
    def __call__(self, image: str | os.PathLike[str] | Image.Image) -> Prediction: ...

    @overload
    def __call__(self, image: list[Any] | tuple[Any, ...]) -> list[Prediction]: ...

    @overload
    def __call__(self, image: NDArray[Any] | Tensor) -> Any: ...

    def __call__(self, image: AnyImage | list[Any] | tuple[Any, ...]) -> Any:
        several = as_list(image)
        found = self.run([image] if several is None else several, self.predictions)
        return found[0] if several is None else found

    def embed(self, image: AnyImage | Sequence[AnyImage]) -> NDArray[np.float32]:
        """Return the unit-length features of an image (d,), or of several (n, d)."""
        several = as_list(image)
        if several is None:
            return self.run([image], self.embeddings)[0]
        return np.array(self.run(several, self.embeddings), dtype=np.float32).reshape(len(several), -1)

    def predict_many(self, images: Images) -> Iterator[Prediction | Skipped]:
        """Yield a prediction per image, in order, or :class:`Skipped` for one that cannot be read.

        ``images`` is any iterable of images, a folder, or a pattern such as ``"photos/*.jpg"``, whose files are sorted.
        """
        return self.run_batches(iterate_images(images), self.predictions)

    def embed_many(self, images: Images) -> Iterator[NDArray[np.float32] | Skipped]:
        """Yield the features of each image; see :meth:`predict_many`."""
        return self.run_batches(iterate_images(images), self.embeddings)

    def run(self, images: Sequence[Any], run: Callable[[Sequence[PreparedImage]], Sequence[T]]) -> list[T]:
        """Apply ``run`` to all images in batches; an image that cannot be read is an error."""
        parts = [images[start : start + self.batch_size] for start in range(0, len(images), self.batch_size)]
        return [one for part in parts for one in run([self.preprocess(image) for image in part])]

    def preprocess(self, image: AnyImage) -> PreparedImage:
        """Return the model's input for an image, and the view that maps predictions back onto it."""
        return self.transform.with_view(as_image(image))

    @torch.inference_mode()
    def predictions(self, seen: Sequence[PreparedImage]) -> Sequence[Prediction]:
        if self.model.config.num_classes == 0:
            raise ValueError("this model has no classifier (num_classes is 0); use embed for its features")
        decoder = find_decoder(self.model.spec)
        images = torch.stack([image for image, _ in seen]).to(self.device)
        if self.accelerates:
            self.engine, self.accelerates = accelerate(self.model, images), False
        outputs = self.engine.outputs(Inputs(images))
        return decoder.decode(outputs, self.model.spec, [view for _, view in seen], top=self.top)

    @torch.inference_mode()
    def embeddings(self, seen: Sequence[PreparedImage]) -> Sequence[NDArray[np.float32]]:
        images = torch.stack([image for image, _ in seen]).to(self.device)
        if self.embedder is None:
            self.embedder = self.make_embedder(images)
        features = self.embedder.outputs(Inputs(images))["class"]
        return list(torch.nn.functional.normalize(features.float(), dim=-1).cpu().numpy())

    def make_embedder(self, images: Tensor) -> Engine:
        """Return the backbone without its heads, accelerated if the model is."""
        backbone = copy_sharing_weights(self.model.backbone)
        backbone.reset_head(0)
        backbone.eval()
        if len(backbone.head_names) > 1:
            return backbone
        if isinstance(self.engine, Accelerated):
            return self.engine.accelerate_alike(backbone, images)
        return accelerate(backbone, images) if self.accelerates else backbone

    def run_batches(
        self, images: Iterable[AnyImage], run: Callable[[Sequence[PreparedImage]], Sequence[T]]
    ) -> Iterator[T | Skipped]:
        """Run batch by batch while threads load the images of the next batch."""
        source = iter(images)
        with retain_freed_memory(), ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as threads:
            ahead = [threads.submit(self.try_preprocess, item) for item in islice(source, self.batch_size)]
            while ahead:
                batch = [future.result() for future in ahead]
                ahead = [threads.submit(self.try_preprocess, item) for item in islice(source, self.batch_size)]
                seen = [item for item in batch if not isinstance(item, Skipped)]
                found = iter(run(seen) if seen else [])
                yield from (item if isinstance(item, Skipped) else next(found) for item in batch)

    def try_preprocess(self, image: AnyImage) -> PreparedImage | Skipped:
        try:
            return self.preprocess(image)
        except BadImage as error:
            return Skipped(error.reason)


def find_device(name: str | torch.device | None) -> torch.device:
    try:
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be a torch device such as 'cpu' or 'cuda:0', got {name!r:.80}") from None


def iterate_images(images: Images) -> Iterable[AnyImage]:
    """Return the sorted files of a folder or a pattern, the images of a batch, or the iterable itself."""
    if isinstance(images, str | os.PathLike):
        return find_images([images])
    if (several := as_list(images)) is not None:
        return several
    if isinstance(images, np.ndarray | Tensor) or not isinstance(images, Iterable):
        raise ValueError(f"expected a list of images, a folder, a pattern or a batch, got {type(images).__name__}")
    return images
