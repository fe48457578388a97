"""What one forward pass left behind, and what can be read from it.

with vt.record(model) as trace:
    model(images)
trace["blocks.3"].weights        trace.rollout()        trace.mean_distance()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from einops import reduce
from jaxtyping import Float
from torch import Tensor

from vitreous.explain import measures
from vitreous.explain import rollout as flow
from vitreous.explain.display import display
from vitreous.explain.recorder import Attention, NoAttention
from vitreous.layers.layout import AnyLayout, Channels, Grouped
from vitreous.layers.position import Grid
from vitreous.models.base import Model
from vitreous.options import did_you_mean
from vitreous.spec import Size

LaidOut = Callable[[Attention], Tensor]


class Trace(Mapping[str, Attention]):
    """What the last forward pass did, by layer: ``trace["blocks.3"].weights``, ``trace.norms["blocks.3"]``."""

    def __init__(self, model: Model, layers: Sequence[str] = ()) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.stream: dict[str, Tensor] = {}
        self.norms: dict[str, Float[Tensor, "b n"]] = {}
        self.images: Float[Tensor, "b c y x"] | None = None
        self._seen: dict[str, Attention] = {}

    def __getitem__(self, name: str) -> Attention:
        if name in self._seen:
            return self._seen[name]
        if name in self.layers:
            raise KeyError(f"{name} has not run yet: call the model inside the with block")
        if parts := [layer for layer in self.layers if layer.startswith(f"{name}.")]:
            raise KeyError(f"{name} has several attentions: choose {' or '.join(parts)}; whole_of({name!r}) joins them")
        raise KeyError(f"{name!r} was not recorded{did_you_mean(str(name), self.layers)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def keep(self, name: str, attention: Attention) -> None:
        self._seen[name] = attention

    @property
    def image_size(self) -> Size:
        if self.images is None:
            raise ValueError("nothing has been recorded yet: call the model inside the with block")
        return self.images.shape[2], self.images.shape[3]

    def stride(self, layer: str | Grid) -> tuple[float, float]:
        """Pixels from cell to cell, down and across, on the grid of a layer."""
        grid = self[layer].grid if isinstance(layer, str) else layer
        if grid is None:
            raise ValueError(f"{layer} has no grid")
        for stride in self.model.strides:
            if all(-(-side // step) == cells for side, step, cells in zip(self.image_size, stride, grid, strict=True)):
                return float(stride[0]), float(stride[1])
        return self.image_size[0] / grid[0], self.image_size[1] / grid[1]

    def whole(self) -> dict[str, Float[Tensor, "b h n n"]]:
        """By block: how much every token takes from every other, all attentions of the block together.

        Blocks in which the tokens of an image do not look at each other (channels, convolutions, cross-attention) are
        left out. Where a block sees an image in several parts (the places of MobileViT's patches) it is their mean.
        """
        return dict(self.each_whole())

    def raised(self) -> dict[str, Float[Tensor, "b h n n"]]:
        """The same of (∇A ⊙ A)⁺, how far weights raised the score on which ``backward()`` was called last."""
        return dict(self.each_whole(Attention.raised))

    def each_whole(self, laid_out: LaidOut = Attention.whole) -> Iterator[tuple[str, Float[Tensor, "b h n n"]]]:
        """One block at a time: whole matrices are large."""
        for block in self.looking():
            yield block, self.whole_of(block, laid_out)

    def whole_of(self, block: str, laid_out: LaidOut = Attention.whole) -> Float[Tensor, "b h n n"]:
        if block not in self.looking():
            raise KeyError(f"in {block!r} no recorded tokens look at tokens{did_you_mean(block, self.looking())}")
        wholes = [self.by_image(laid_out(attention), attention) for attention in self.looking()[block]]
        return sum(wholes[1:], wholes[0])

    def by_image(self, values: Float[Tensor, "p h ..."], attention: Attention) -> Float[Tensor, "b h ..."]:
        """Average over the parts in which an image was seen; text and object queries are left as they are."""
        of_images = attention.layout is None or attention.layout.queries.source == "image"
        if self.images is None or len(values) == len(self.images) or not of_images:
            return values
        return reduce(values, "(b parts) h ... -> b h ...", "mean", b=len(self.images))

    def looking(self) -> dict[str, list[Attention]]:
        """By block, the attentions in which tokens of an image look at each other."""
        found: dict[str, list[Attention]] = {}
        for name, attention in self.items():
            if attention.layout is None or attention.layout.one_set:
                found.setdefault(".".join(name.split(".")[:2]), []).append(attention)
        return found

    def crossing(self) -> dict[str, AnyLayout]:
        """By layer, the layouts in which queries look at other tokens than those of one image."""
        return {
            name: attention.layout
            for name, attention in self.items()
            if not (attention.layout is None or attention.layout.one_set or isinstance(attention.layout, Channels))
        }

    def cross_attention(self) -> dict[str, Float[Tensor, "b h q *v y x"]]:
        """By layer and head: what each object query, word or other token looks at, on the grid of the keys.

        With an axis of views before the grid where the keys are several cameras. Layers whose keys have no grid are
        left out.
        """
        placed = [name for name, layout in self.crossing().items() if layout.keys.grid is not None]
        return {name: self[name].onto_keys() for name in placed}

    def last(self) -> str:
        """The last block in which tokens of an image look at each other."""
        if not self.looking():
            raise NoAttention("in none of the recorded layers do tokens look at tokens, so there is no map of them")
        return list(self.looking())[-1]

    def cells(self, block: str | None = None) -> tuple[Grid, int]:
        """Grid and number of prefix tokens of a block, by default the last in which they look at each other."""
        attention = self.looking()[block or self.last()][0]
        if attention.layout is None:
            raise ValueError("this attention does not say what its queries and keys stand for: give its seam a layout")
        if attention.grid is None:
            raise ValueError("tokens were dropped, so their places on the grid are not known; record in eval mode")
        return attention.grid, attention.num_prefix

    def rows(self, block: str | None = None) -> slice:
        """The tokens of a block that the classifier reads in the end."""
        return self.model.read_tokens(self.cells(block)[1])

    def check_one_grid(self) -> None:
        """Before anything large is laid out."""
        for name, layout in self.crossing().items():
            raise ValueError(
                f"rollout follows the tokens of one image, but in {name} {layout.queries.described()} attend to "
                f"{layout.keys.described()}; record the layers before it, and see cross_attention() for its maps"
            )
        grids = [self.cells(block) for block in self.looking()]
        measures.check_one_set((prefix + grid[0] * grid[1] for grid, prefix in grids), "rollout")

    def mean_map(self, block: str | None = None) -> Float[Tensor, "b y x"]:
        """How much each cell is looked at, by default in the last block; 1 is an even share.

        It says where information is fetched from, not what it is used for.
        """
        return measures.mean_map(self.whole_of(block or self.last()), *self.cells(block))

    def class_attention(self) -> dict[str, Float[Tensor, "b h y x"]]:
        """By block and head: what the classifier's token looks at, or the cells that are averaged for it."""
        return {
            name: flow.class_attention(whole, *self.cells(name), rows=self.rows(name))
            for name, whole in self.each_whole()
        }

    def rollout(self, *, residual: bool = True, fusion: str = "mean", discard: float = 0.0) -> Float[Tensor, "b y x"]:
        """Attention followed through all recorded layers: whence the answer could have its information."""
        self.check_one_grid()
        wholes = list(self.whole().values())
        result = flow.rollout(wholes, residual=residual, fusion=fusion, discard=discard)
        return flow.relevance_map(result, *self.cells(), rows=self.rows())

    def gradient_rollout(self) -> Float[Tensor, "b y x"]:
        """The same, each weight counted by what it did for the score on which ``backward()`` was called."""
        self.check_one_grid()
        result = flow.gradient_rollout(list(self.raised().values()))
        return flow.relevance_map(result, *self.cells(), rows=self.rows(), without_identity=True)

    def entropy(self) -> dict[str, Float[Tensor, "b h"]]:
        """By layer and head, in nats: its exponential is the number of keys that a query looks at."""
        return {name: self.entropy_of(attention) for name, attention in self.items()}

    def entropy_of(self, attention: Attention) -> Float[Tensor, "b h"]:
        """Over the keys as they are: a key that stands for a region is one."""
        grouped = isinstance(attention.layout, Grouped)  # where queries may be padding
        weights = attention.whole()[:, :, attention.num_prefix :] if grouped else attention.weights
        return self.by_image(measures.entropy(weights).mean(dim=-1), attention)

    def mean_distance(self) -> dict[str, Float[Tensor, "b h"]]:
        """By block and head: how far cells look, in pixels."""
        return {
            name: measures.mean_distance(whole, *self.cells(name), stride=self.stride(self.cells(name)[0]))
            for name, whole in self.each_whole()
        }

    def effective_rank(self) -> dict[str, Float[Tensor, "b h"]]:
        """By block and head: how many directions the attention matrix uses."""
        return {name: measures.effective_rank(whole) for name, whole in self.each_whole()}

    def _repr_html_(self) -> str:
        """In a notebook a trace shows itself."""
        return str(display("trace", self))

    def __repr__(self) -> str:
        lines = [f"  {name}: {shapes(attention)}" for name, attention in self.items()]
        return "\n".join([f"Trace of {len(self)} layers", *lines])


def shapes(attention: Attention) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in attention.kept.items())
