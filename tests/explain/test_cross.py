"""Traces of a model with cross-attention: maps per query, and exclusion from rollout and token matrices."""

import pytest
import torch

import vitreous as vt
from tests.explain.decoder import HEADS, QUERIES, detector
from tests.parity import error

CELLS = (4, 6)


def recorded(**options):
    model, images = detector(), torch.randn(2, 3, 32, 48)
    plain = model(images)
    with vt.record(model, **options) as trace:
        assert error(model(images), plain) < 1e-5
    return trace


def test_each_object_query_has_its_map():
    trace = recorded()
    assert list(trace) == ["blocks.0", "blocks.1", "blocks.2.own", "blocks.2.cross"]
    maps = trace.cross_attention()
    assert list(maps) == ["blocks.2.cross"]
    cross = trace["blocks.2.cross"]
    assert maps["blocks.2.cross"].shape == (2, HEADS, QUERIES, *CELLS)
    assert torch.equal(maps["blocks.2.cross"].flatten(-2), cross.weights)
    assert torch.equal(cross.onto_keys(), maps["blocks.2.cross"])
    assert (cross.grid, cross.query_grid, cross.key_grid) == (CELLS, None, CELLS)
    assert trace.stride("blocks.2.cross") == (8, 8)


def test_measures_of_the_encoder_exclude_the_decoder():
    trace = recorded()
    assert list(trace.token_matrices()) == list(trace.self_attentions()) == ["blocks.0", "blocks.1"]
    assert trace.last_block() == "blocks.1"
    assert trace.grid_and_prefix() == (CELLS, 0)
    assert list(trace.mean_distance()) == list(trace.effective_rank()) == ["blocks.0", "blocks.1"]
    assert trace.mean_map().shape == (2, *CELLS)
    assert {name: tuple(found.shape) for name, found in trace.entropy().items()} == dict.fromkeys(trace, (2, HEADS))


@pytest.mark.parametrize("layer", ["blocks.2.own", "blocks.2.cross"])
def test_there_is_no_token_matrix_of_queries(layer):
    trace = recorded()
    with pytest.raises(ValueError, match=r"20 queries tokens attend to 4×6 image cells|queries tokens have no grid"):
        trace[layer].token_matrix()
    with pytest.raises(KeyError, match="no self-attention between tokens recorded"):
        trace.token_matrix("blocks.2")


def test_rollout_refuses_cross_attention_and_names_the_layer():
    trace = recorded()
    with pytest.raises(
        ValueError, match=r"in blocks\.2\.own 20 queries tokens attend to .* record only the layers before it"
    ):
        trace.rollout()
    assert recorded(layers="blocks.[01]").rollout().shape == (2, *CELLS)


def test_gradient_rollout_refuses_cross_attention_too():
    model = detector()
    with vt.record(model, "blocks.2.cross", gradients=True) as trace:
        model(torch.randn(1, 3, 32, 48))[0, 1].backward()
    with pytest.raises(ValueError, match=r"in blocks\.2\.cross 20 queries tokens attend to 4×6 image cells"):
        trace.gradient_rollout()


def test_queries_are_not_averaged_as_parts_of_images():
    """Only image tokens may come in several parts; the batch of other tokens is left unchanged."""
    trace = recorded()
    trace.images = trace.images[:1]
    assert trace.entropy_of(trace["blocks.0"]).shape == (1, HEADS)
    assert trace.entropy_of(trace["blocks.2.cross"]).shape == (2, HEADS)
