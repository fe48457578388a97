"""The recording of one forward pass, and the measures and maps computed from it.

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
from vitreous.explain.recorder import Attention, NoAttention
from vitreous.explain.rendering import render
from vitreous.layers.layout import AnyLayout, Channels, Grouped
from vitreous.layers.position import Grid
from vitreous.models.base import Model
from vitreous.options import did_you_mean
from vitreous.spec import Size

ToMatrix = Callable[[Attention], Tensor]


class Trace(Mapping[str, Attention]):
    """The attention of the last forward pass by layer, as returned by :func:`vitreous.record`.

    A mapping from layer name to :class:`Attention`: ``trace["blocks.3"].weights``. Blocks with several attentions have
    one entry for each, such as "blocks.3.mixer". ``stream`` and ``norms`` hold the output tokens of each block and
    their L2 norms, if they were requested; ``images`` is the recorded batch.
    """

    def __init__(self, model: Model, layers: Sequence[str] = ()) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.stream: dict[str, Tensor] = {}
        self.norms: dict[str, Float[Tensor, "b n"]] = {}
        self.images: Float[Tensor, "b c y x"] | None = None
        self._attentions: dict[str, Attention] = {}

    def __getitem__(self, name: str) -> Attention:
        if name in self._attentions:
            return self._attentions[name]
        if name in self.layers:
            raise KeyError(f"{name} has not run yet: call the model inside the with block")
        if parts := [layer for layer in self.layers if layer.startswith(f"{name}.")]:
            raise KeyError(
                f"{name} has several attentions: choose {' or '.join(parts)}; token_matrix({name!r}) sums them"
            )
        raise KeyError(f"{name!r} was not recorded{did_you_mean(str(name), self.layers)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._attentions)

    def __len__(self) -> int:
        return len(self._attentions)

    def add(self, name: str, attention: Attention) -> None:
        self._attentions[name] = attention

    @property
    def image_size(self) -> Size:
        if self.images is None:
            raise ValueError("nothing has been recorded yet: call the model inside the with block")
        return self.images.shape[2], self.images.shape[3]

    def stride(self, layer: str | Grid) -> tuple[float, float]:
        """Pixels per cell (y, x) on the grid of a layer."""
        grid = self[layer].grid if isinstance(layer, str) else layer
        if grid is None:
            raise ValueError(f"{layer} has no grid")
        for stride in self.model.strides:
            if all(-(-side // step) == cells for side, step, cells in zip(self.image_size, stride, grid, strict=True)):
                return float(stride[0]), float(stride[1])
        return self.image_size[0] / grid[0], self.image_size[1] / grid[1]

    def token_matrices(self) -> dict[str, Float[Tensor, "b h n n"]]:
        """The attention matrix over all tokens of the image, by block; several attentions of a block are summed.

        Blocks without self-attention between tokens (channel attention, convolution, cross-attention) are left out.
        Where a block processes an image in several parts (the pixel positions of MobileViT's patches) their mean is
        returned.
        """
        return dict(self.iter_token_matrices())

    def gradient_weighted(self) -> dict[str, Float[Tensor, "b h n n"]]:
        """(∇A ⊙ A)⁺ by block, as :meth:`token_matrices`, for the score on which ``backward()`` was last called."""
        return dict(self.iter_token_matrices(Attention.gradient_weighted))

    def iter_token_matrices(
        self, to_matrix: ToMatrix = Attention.token_matrix
    ) -> Iterator[tuple[str, Float[Tensor, "b h n n"]]]:
        """Yield the token matrices block by block, since all of them may not fit into memory."""
        for block in self.self_attentions():
            yield block, self.token_matrix(block, to_matrix)

    def token_matrix(self, block: str, to_matrix: ToMatrix = Attention.token_matrix) -> Float[Tensor, "b h n n"]:
        """The token matrix of one block; see :meth:`token_matrices`."""
        attentions = self.self_attentions()
        if block not in attentions:
            raise KeyError(f"no self-attention between tokens recorded in {block!r}{did_you_mean(block, attentions)}")
        matrices = [self.mean_over_parts(to_matrix(attention), attention) for attention in attentions[block]]
        return sum(matrices[1:], matrices[0])

    def mean_over_parts(self, values: Float[Tensor, "p h ..."], attention: Attention) -> Float[Tensor, "b h ..."]:
        """Average over the parts in which an image was processed; text and object queries are unchanged."""
        of_images = attention.layout is None or attention.layout.queries.source == "image"
        if self.images is None or len(values) == len(self.images) or not of_images:
            return values
        return reduce(values, "(b parts) h ... -> b h ...", "mean", b=len(self.images))

    def self_attentions(self) -> dict[str, list[Attention]]:
        """The self-attentions between the tokens of an image, by block."""
        found: dict[str, list[Attention]] = {}
        for name, attention in self.items():
            if attention.layout is None or attention.layout.within_image:
                found.setdefault(".".join(name.split(".")[:2]), []).append(attention)
        return found

    def cross_layouts(self) -> dict[str, AnyLayout]:
        """The layouts of attentions that are not self-attention within one image, by layer."""
        return {
            name: attention.layout
            for name, attention in self.items()
            if not (attention.layout is None or attention.layout.within_image or isinstance(attention.layout, Channels))
        }

    def cross_attention(self) -> dict[str, Float[Tensor, "b h q *v y x"]]:
        """Cross-attention maps of each query (object query, text token, …) on the grid of the keys, by layer.

        Keys of several views, such as cameras, add an axis of views before the grid. Layers whose keys have no grid
        are left out.
        """
        with_grid = [name for name, layout in self.cross_layouts().items() if layout.keys.grid is not None]
        return {name: self[name].onto_keys() for name in with_grid}

    def last_block(self) -> str:
        """Name of the last block with self-attention between the tokens of an image."""
        if not self.self_attentions():
            raise NoAttention("none of the recorded layers has self-attention between tokens, so there is no map")
        return list(self.self_attentions())[-1]

    def grid_and_prefix(self, block: str | None = None) -> tuple[Grid, int]:
        """Grid and number of prefix tokens of a block; default: :meth:`last_block`."""
        attention = self.self_attentions()[block or self.last_block()][0]
        if attention.layout is None:
            raise ValueError("this attention has no layout of its queries and keys; pass layout= to its AttentionOp")
        if attention.grid is None:
            raise ValueError("tokens were dropped, so their positions on the grid are unknown; record in eval mode")
        return attention.grid, attention.num_prefix

    def read_tokens(self, block: str | None = None) -> slice:
        """The tokens that the head reads: class and distillation token, or all cells where they are pooled."""
        return self.model.read_tokens(self.grid_and_prefix(block)[1])

    def check_single_grid(self) -> None:
        """Raise a ValueError unless all layers attend over the same tokens, before any large matrix is allocated."""
        for name, layout in self.cross_layouts().items():
            raise ValueError(
                f"rollout follows the tokens of one image, but in {name} {layout.queries.describe()} attend to "
                f"{layout.keys.describe()}; record only the layers before it, and use cross_attention() for its maps"
            )
        grids = [self.grid_and_prefix(block) for block in self.self_attentions()]
        measures.check_same_tokens((prefix + grid[0] * grid[1] for grid, prefix in grids), "rollout")

    def mean_map(self, block: str | None = None) -> Float[Tensor, "b y x"]:
        """Attention that each cell receives, mean over heads and queries; 1 is uniform. Default: the last block.

        Shows where information is read from, not what it is used for.
        """
        return measures.mean_map(self.token_matrix(block or self.last_block()), *self.grid_and_prefix(block))

    def class_attention(self) -> dict[str, Float[Tensor, "b h y x"]]:
        """Attention of the class token, or the mean over the cells where they are pooled, by block and head."""
        return {
            name: flow.class_attention(matrix, *self.grid_and_prefix(name), rows=self.read_tokens(name))
            for name, matrix in self.iter_token_matrices()
        }

    def rollout(self, *, residual: bool = True, fusion: str = "mean", discard: float = 0.0) -> Float[Tensor, "b y x"]:
        """Attention rollout through all recorded layers; see :func:`vitreous.explain.rollout.rollout`."""
        self.check_single_grid()
        matrices = list(self.token_matrices().values())
        result = flow.rollout(matrices, residual=residual, fusion=fusion, discard=discard)
        return flow.relevance_map(result, *self.grid_and_prefix(), rows=self.read_tokens())

    def gradient_rollout(self) -> Float[Tensor, "b y x"]:
        """Gradient-weighted rollout for the score on which ``backward()`` was last called."""
        self.check_single_grid()
        result = flow.gradient_rollout(list(self.gradient_weighted().values()))
        return flow.relevance_map(result, *self.grid_and_prefix(), rows=self.read_tokens(), without_identity=True)

    def entropy(self) -> dict[str, Float[Tensor, "b h"]]:
        """Mean entropy of the attention in nats, by layer and head; its exponential is an effective number of keys."""
        return {name: self.entropy_of(attention) for name, attention in self.items()}

    def entropy_of(self, attention: Attention) -> Float[Tensor, "b h"]:
        """Mean entropy by head, over the keys as computed: a merged key counts as one."""
        grouped = isinstance(attention.layout, Grouped)  # whose queries may be padding
        weights = attention.token_matrix()[:, :, attention.num_prefix :] if grouped else attention.weights
        return self.mean_over_parts(measures.entropy(weights).mean(dim=-1), attention)

    def mean_distance(self) -> dict[str, Float[Tensor, "b h"]]:
        """Mean attention distance between cells in pixels, by block and head."""
        found = {}
        for name, matrix in self.iter_token_matrices():
            grid, num_prefix = self.grid_and_prefix(name)
            found[name] = measures.mean_distance(matrix, grid, num_prefix, stride=self.stride(grid))
        return found

    def effective_rank(self) -> dict[str, Float[Tensor, "b h"]]:
        """Effective rank of the attention matrix, by block and head."""
        return {name: measures.effective_rank(matrix) for name, matrix in self.iter_token_matrices()}

    def _repr_html_(self) -> str:
        """HTML for notebooks: the attention maps as a figure."""
        return str(render("trace", self))

    def __repr__(self) -> str:
        lines = [f"  {name}: {shapes(attention)}" for name, attention in self.items()]
        return "\n".join([f"Trace of {len(self)} layers", *lines])


def shapes(attention: Attention) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in attention.tensors.items())
