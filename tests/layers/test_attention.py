"""Attention equals an explicit softmax, PyTorch and timm, and has the expected limits and symmetries."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention as TimmAttention

from tests.parity import error, fill
from vitreous.layers.attention import Attend, CrossAttention, SelfAttention
from vitreous.layers.mixer import MixerContext

many = settings(max_examples=100, deadline=None)


def naive(q, k, v, temperature=1.0, bias=None, mask=None):
    """One query, one key at a time."""
    out = torch.zeros(q.shape[0], v.shape[1])
    for i in range(q.shape[0]):
        scores = []
        for j in range(k.shape[0]):
            score = float(q[i] @ k[j]) / (temperature * math.sqrt(q.shape[1]))
            score += float(bias[i, j]) if bias is not None else 0.0
            scores.append(score if mask is None or mask[i, j] else -math.inf)
        top = max(scores)
        shares = [math.exp(s - top) if top > -math.inf else 0.0 for s in scores]
        for j, share in enumerate(shares):
            out[i] += share / (sum(shares) or 1.0) * v[j]
    return out


@many
@given(
    n=st.integers(1, 7),
    m=st.integers(1, 7),
    temperature=st.floats(0.1, 10),
    with_bias=st.booleans(),
    with_mask=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_loop(n, m, temperature, with_bias, with_mask, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(length, 4, generator=generator) for length in (n, m, m))
    bias = torch.randn(n, m, generator=generator) if with_bias else None
    mask = torch.rand(n, m, generator=generator) > 0.4 if with_mask else None
    attend = Attend(temperature=temperature)
    expected = naive(q, k, v, temperature, bias, mask)
    fused = attend(q[None, None], k[None, None], v[None, None], bias=bias, mask=mask)[0, 0]
    explicit = attend.weights(q, k, bias=bias, mask=mask) @ v
    assert torch.allclose(fused, expected, atol=1e-5)
    assert torch.allclose(explicit, expected, atol=1e-5)


@many
@given(n=st.integers(1, 20), scale=st.floats(0, 50), seed=st.integers(0, 1000))
def test_rows_sum_to_one_and_nothing_is_negative(n, scale, seed):
    q, k = scale * torch.randn(2, 3, n, 8, generator=torch.Generator().manual_seed(seed))
    weights = Attend().weights(q, k)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(3, n), atol=1e-5)


def test_limits_of_the_temperature():
    q, k = torch.randn(1, 8), torch.randn(5, 8)
    best = (q @ k.T).argmax()
    cold, hot = Attend(temperature=1e-3).weights(q, k)[0], Attend(temperature=1e6).weights(q, k)[0]
    assert cold[best].item() == pytest.approx(1)
    assert torch.allclose(hot, torch.full((5,), 0.2), atol=1e-5)
    tied = Attend(temperature=1e-3).weights(q, torch.stack([k[best], k[best]]))[0]
    assert torch.allclose(tied, torch.tensor([0.5, 0.5]))


def test_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        Attend(temperature=0.0)


def test_self_attention_equals_timm():
    theirs = fill(TimmAttention(48, num_heads=4, qkv_bias=True))
    ours = SelfAttention(MixerContext(dim=48, num_heads=4, grid=(3, 4))).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 13, 48)
    assert error(ours(x, (3, 4), 1), theirs(x)) < 1e-5


@pytest.mark.parametrize("context_dim", [24, 40])
def test_cross_attention_equals_torch(context_dim):
    ours = fill(CrossAttention(24, 3, context_dim=context_dim))
    theirs = torch.nn.MultiheadAttention(24, 3, batch_first=True, kdim=context_dim, vdim=context_dim)
    key, value = ours.kv.weight.chunk(2)
    if context_dim == 24:
        theirs.in_proj_weight.data = torch.cat([ours.q.weight, key, value])
    else:
        theirs.q_proj_weight.data, theirs.k_proj_weight.data, theirs.v_proj_weight.data = ours.q.weight, key, value
    theirs.in_proj_bias.data = torch.cat([ours.q.bias, ours.kv.bias])
    theirs.out_proj.load_state_dict(ours.proj.state_dict())
    x, context = torch.randn(2, 5, 24), torch.randn(2, 9, context_dim)
    mask = torch.rand(2, 1, 1, 9) > 0.3
    mask[..., 0] = True
    expected = theirs(x, context, context, key_padding_mask=~mask[:, 0, 0])[0]
    assert error(ours(x, context, mask=mask), expected) < 1e-5


def test_without_positions_attention_is_equivariant():
    attention = fill(SelfAttention(MixerContext(dim=32, num_heads=4, grid=(2, 5))))
    x, order = torch.randn(2, 10, 32), torch.randperm(10)
    assert error(attention(x[:, order], None), attention(x, None)[:, order]) < 1e-5


def test_attention_dropout_only_in_training():
    attention = fill(SelfAttention(MixerContext(dim=32, num_heads=4, grid=(2, 5), attention_drop_rate=0.5)))
    x = torch.randn(2, 10, 32)
    assert torch.equal(attention(x, None), attention(x, None))
    attention.train()
    assert not torch.equal(attention(x, None), attention(x, None))


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5), (3, 1, 5, 5)])
def test_a_bias_of_any_number_of_axes_takes_the_fused_kernel(shape):
    q, k, v = torch.randn(3, 3, 2, 5, 8)
    bias, attend = torch.randn(shape), Attend()
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        output = attend(q, k, v, bias=bias)
    assert any("flash" in event.key for event in profile.key_averages())
    assert error(output, attend.weights(q, k, bias=bias) @ v) < 1e-5
