"""Shared instruments of the attention experiments: attention matrices and MAC counts."""

import torch

from vitreous.lab.instruments.attention_matrix import attention_matrix, peaked_attention, random_heads
from vitreous.lab.instruments.counting import counted_macs
from vitreous.layers.attention import Attend


def test_one_hot_values_show_the_weights_of_fused_attention():
    q, k = random_heads(3, 7, 4, seed=0)
    bias = torch.randn(7, 7, dtype=torch.float64)
    shown = attention_matrix(q, k, bias=bias, temperature=0.5)
    torch.testing.assert_close(shown, Attend(temperature=0.5).weights(q, k, bias=bias))


def test_peaked_attention_selects_the_favorites():
    favorites = torch.tensor([2, 2, 0, 1])
    assert torch.equal(peaked_attention(favorites, 9.0).argmax(dim=-1), favorites)
    torch.testing.assert_close(peaked_attention(favorites, 0.0), torch.full((4, 4), 0.25, dtype=torch.float64))


def test_modules_are_counted_by_path():
    macs = counted_macs("vit_tiny_16", 32, depth=1)
    assert macs["stem.proj"] == 4 * 16 * 16 * 3 * 192
    assert macs[""] == macs["stem"] + macs["blocks.0"] + macs["head"]
