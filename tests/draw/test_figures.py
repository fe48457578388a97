"""Figures can be drawn for any evidence, and show the values they are given."""

import numpy as np
import pytest
import torch

import vitreous as vt
from tests.family import tiny
from vitreous.draw import maps as map_figures
from vitreous.draw import measures as measure_figures
from vitreous.draw import parameters as weight_figures
from vitreous.draw.inline import as_html, inline_svg
from vitreous.draw.overlay import displayable, overlay, resized
from vitreous.explain.maps import relative_to_mean

IMAGE = torch.randint(0, 256, (3, 40, 56), dtype=torch.uint8)

GRIDS = [(5, 7), (1, 1), (2, 9)]


def drawn(figure, name="a"):
    """The figure as SVG, which runs all steps of drawing."""
    svg = inline_svg(figure, name, 'a "quoted" <text>')
    assert svg.startswith('<svg role="img" aria-label="a &quot;quoted&quot; &lt;text&gt;"')
    return svg


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("image", [IMAGE, IMAGE[:1], IMAGE / 255, IMAGE.numpy()])
def test_overlay_takes_any_grid_precision_and_image(grid, dtype, image):
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    overlay(axis, image, torch.rand(grid).to(dtype))
    (shown,) = axis.get_images()
    assert shown.get_array().shape == (40, 56, 3)


def test_the_image_shows_through_where_there_is_no_heat():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    heat = torch.zeros(1, 2)
    heat[0, 1] = 5.0
    overlay(axis, IMAGE, heat)
    pixels = np.asarray(axis.get_images()[0].get_array())
    gray = displayable(IMAGE).mean(axis=2) / 255

    def follows(column):
        return np.corrcoef(pixels[:, column].mean(axis=1), gray[:, column])[0, 1]

    assert follows(2) > 0.999
    assert pixels[:, :10].std() > 2 * pixels[:, -10:].std(axis=0).mean()
    assert pixels[:, -10:].mean() > pixels[:, :10].mean()


def test_heat_is_averaged_when_it_is_finer_than_the_image():
    heat = torch.zeros(4, 4)
    heat[0, 0] = 4.0
    assert resized(heat, (2, 2)).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert resized(heat.half(), (2, 2)).tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("grid", GRIDS)
def test_maps_of_an_image(grid):
    heats = {"rollout": torch.rand(grid), "all zero": torch.zeros(grid), "against": -torch.rand(grid)}
    svg = drawn(map_figures.methods_figure(IMAGE, heats))
    assert all(f">{name}<" in svg for name in ("the image", *heats))
    even = {f"blocks.{index}": relative_to_mean(torch.rand(grid)) for index in range(3)}
    assert ">blocks.2<" in drawn(map_figures.depth_figure(IMAGE, even, place=(0.99, 0.0)))


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3), (30, 1), (1, 40)])
def test_heads_by_layers(layers, heads):
    maps = {f"blocks.{index}": torch.rand(heads, 5, 7).half() for index in range(layers)}
    svg = drawn(map_figures.heads_figure(maps))
    assert svg.count(">blocks.") == min(layers, map_figures.MAX_COLUMNS)
    assert svg.count(">head ") == min(heads, map_figures.MAX_ROWS)
    assert ">blocks.0<" in svg
    assert f">blocks.{layers - 1}<" in svg


def test_layers_may_differ_in_heads_and_grid():
    maps = {"blocks.0": torch.rand(2, 8, 8), "blocks.1": torch.rand(4, 4, 4)}
    figure = map_figures.heads_figure(maps)
    opaque = np.asarray(figure.axes[0].get_images()[0].get_array())[..., 3] > 0
    assert opaque.sum() == (2 + 4) * 56 * 56


def top_of(figure):
    """Top of the only row of tiles, below its titles."""
    return figure.axes[0].get_images()[0].get_array().shape[0] - IMAGE.shape[1]


def test_the_marked_cell_is_framed_where_it_lies():
    figure = map_figures.depth_figure(IMAGE, {"a": torch.rand(5, 7)}, place=(0.5, 0.9))
    frames = {(frame.get_xy(), frame.get_width(), frame.get_height()) for frame in figure.axes[0].patches}
    assert frames == {((47.5, top_of(figure) + 15.5), 8.0, 8.0)}


def test_points_are_drawn_where_they_are_sampled():
    points = torch.tensor([[[0.0, 0.0], [1.0, 0.5]], [[0.5, 0.5], [2.0, 0.0]]])
    figure = map_figures.points_figure(IMAGE, {"blocks.1": points}, weights={"blocks.1": torch.rand(2, 2)})
    first, second = (one.get_offsets() - [0, top_of(figure)] for one in figure.axes[0].collections)
    assert first.tolist() == [[-0.5, -0.5], [55.5, 19.5]]
    assert second.tolist() == [[27.5, 19.5]]
    drawn(map_figures.points_figure(IMAGE, {"blocks.1": points}, place=(0.5, 0.5)))


def test_measures_by_layer():
    layers = {f"blocks.{index}": torch.rand(3).half() for index in range(20)} | {"blocks.20": torch.full((3,), np.nan)}
    figure = measure_figures.layers_figure({"distance (pixels)": layers, "entropy (nats)": {"blocks.0": torch.ones(1)}})
    dots = figure.axes[0].collections[0].get_offsets()
    assert len(dots) == 63
    assert np.allclose(figure.axes[0].lines[0].get_ydata()[3], layers["blocks.3"].float().mean(), atol=1e-6)
    assert ">distance (pixels)<" in drawn(figure)


def test_norms_mark_outliers():
    norms = {"blocks.0": torch.tensor([1.0, 1.1, 9.0]), "blocks.1": torch.ones(3)}
    figure = measure_figures.norms_figure(norms, {name: lengths > 3 for name, lengths in norms.items()})
    (outliers,) = [one for one in figure.axes[0].collections if one.get_label() == "outlier tokens"]
    assert outliers.get_offsets().tolist() == [[0.0, 9.0]]
    nothing = measure_figures.norms_figure(norms, {name: lengths > 99 for name, lengths in norms.items()})
    assert "outlier" not in drawn(nothing)


def test_infinite_norms_are_drawn_without_a_warning():
    lengths = {"blocks.0": np.array([1.0, np.inf, np.inf])}
    assert measure_figures.norms_figure(lengths, {"blocks.0": np.zeros(3, dtype=bool)}).axes


def test_curves_and_the_lens():
    curves = {"hidden": {f"method {index}": torch.linspace(1, 0, 5) for index in range(9)}}
    svg = drawn(measure_figures.curves_figure(curves, bands={"hidden": torch.rand(4, 5)}))
    assert all(f">{name}<" in svg for name in (*curves["hidden"], "4 random maps"))
    answers = {"blocks.0": ("a & b", 0.2), "blocks.1": ("a & b", 0.3), "blocks.2": ("x" * 40, 0.9)}
    svg = drawn(measure_figures.lens_figure(answers, dict.fromkeys(answers, 0.1), target_name="<target>"))
    assert svg.count("a &amp; b") == 1
    assert "&lt;target&gt;" in svg


@pytest.mark.parametrize("grid", [(3, 5), (1, 1), (20, 1)])
def test_positions(grid):
    table = torch.randn(grid[0] * grid[1], 8)
    similar = weight_figures.position_similarity(table, grid)
    assert similar.shape == (min(grid[0], 14), min(grid[1], 14), *grid)
    expected = torch.cosine_similarity(table[0], table[-1], dim=0)
    assert torch.allclose(similar[0, 0, -1, -1], expected, atol=1e-6)
    drawn(weight_figures.position_figure(table.half(), grid))


def test_positions_of_another_grid():
    with pytest.raises(ValueError, match="a grid of 2×3 has 6 positions, got 5"):
        weight_figures.position_similarity(torch.randn(5, 4), (2, 3))


@pytest.mark.parametrize("shape", [(192, 3, 16, 16), (10, 3, 3, 3), (5, 1, 7, 7), (8, 4, 2, 4)])
def test_filters(shape):
    svg = drawn(weight_figures.filter_figure(torch.randn(shape).half()))
    assert svg.count("<image") == 1


def test_principal_filters_are_the_directions_in_which_filters_differ():
    direction = torch.nn.functional.normalize(torch.randn(3 * 4 * 4), dim=0)
    filters = torch.randn(100, 1) * direction + 0.01 * torch.randn(100, 48) + 3.0
    first = weight_figures.principal_filters(filters.reshape(100, 3, 4, 4), 2)[0].flatten()
    assert (first @ direction).abs() > 0.99


@pytest.mark.parametrize("name", ["vit_tiny_16", "xcit_nano_12_16", "dat_tiny", "mobilevit_xxs", "pvt_tiny"])
def test_a_trace_shows_itself(name):
    model = tiny(name).eval()
    with vt.record(model) as trace, torch.no_grad():
        model(torch.randn(2, 3, 64, 96))
    html = as_html(map_figures.trace_figure(trace), "attention")
    assert html.startswith(('<img src="data:image/png;base64,', '<img src="data:image/webp;base64,'))
    assert 'alt="attention"' in html


def test_a_trace_that_cannot_be_drawn():
    model = tiny("vit_tiny_16")
    with vt.record(model, reduce=lambda weights: weights[:, :, 0]) as trace:
        with pytest.raises(ValueError, match="nothing in this trace can be drawn"):
            map_figures.trace_figure(trace)
        model(torch.randn(1, 3, 64, 64))
    with pytest.raises(ValueError, match="nothing in this trace can be drawn"):
        map_figures.trace_figure(trace)


def test_a_reduced_trace_shows_its_heads_together():
    model = tiny("vit_tiny_16", num_registers=2)
    with vt.record(model, reduce="mean_heads") as trace:
        model(torch.randn(5, 3, 64, 64))
    figure = map_figures.trace_figure(trace)
    opaque = np.asarray(figure.axes[0].get_images()[0].get_array())[..., 3] > 0
    assert opaque.sum() == 4 * 3 * 60 * 60  # four images, each beside two blocks
