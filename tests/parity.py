"""Parity that can fail: fill every weight with values that matter, compare, and prove that every block is seen."""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import vitreous as vt

TOLERANCE = 1e-5


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and buffer seeded and large enough to matter: biases, norms, LayerScale, tables, tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: Tensor, mean: float, std: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std + mean)

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if tensor.ndim in (2, 4):
                draw(tensor, 0.0, tensor[0].numel() ** -0.5)
            elif name.endswith(("weight", "gamma", "lambda1")):
                draw(tensor, 1.0, 0.2)
            elif name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            else:
                draw(tensor, 0.0, 0.5)
    return model.eval()


def error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the output's scale."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} is not {tuple(expected.shape)}"
    return ((actual - expected).abs().max() / expected.abs().max()).item()


class Skip(nn.Module):
    """A block that does nothing."""

    def forward(self, x, *args, **kwargs):
        return x


def assert_every_block_matters(model, run) -> None:
    """The proof of sight: with any one block replaced by the identity the output moves by more than 1e-2."""
    expected = run()
    for index, block in enumerate(model.blocks):
        original, block.forward = block.forward, Skip().forward
        moved = error(run(), expected)
        block.forward = original
        assert moved > 1e-2, f"block {index} could be removed and nobody would notice ({moved:.1e})"
    assert error(run(), expected) == 0


def same(ours, theirs, images, *, run=None, every_block=True):
    """Load through the key map, compare, and prove that each block matters."""
    report = vt.load_weights(ours.eval(), theirs.state_dict())
    run = run or ours
    with torch.no_grad():
        assert error(run(images), theirs(images)) < TOLERANCE
        if every_block:
            assert_every_block_matters(ours, lambda: run(images))
    return report


class Logits(torch.nn.Module):
    """A transformers model that takes images and gives one tensor."""

    def __init__(self, model, field="logits", **options):
        super().__init__()
        self.model, self.field, self.options = model, field, options

    def forward(self, images):
        return self.model(images, **self.options)[self.field]

    def state_dict(self):
        return self.model.state_dict()


def assert_same_parameters(name, make_theirs) -> None:
    """Every tensor of ``make_theirs(num_classes)`` finds its place by name and shape, and there are no others."""
    with torch.device("meta"):
        ours = vt.create_model(name)
        theirs = make_theirs(ours.config.num_classes)
        report = vt.load_weights(ours, theirs.state_dict())
    assert report.num_loaded == len(ours.state_dict())
    assert not report.adapted
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def assert_same_macs(name, make_theirs) -> None:
    """Both counted by torch, at the row's own image size."""
    with torch.device("meta"):
        ours = vt.create_model(name)
        models = ours, make_theirs(ours.config.num_classes)
        images = torch.empty(1, 3, *ours.config.image_size)
        counts = []
        for model in models:
            with FlopCounterMode(display=False) as counter:
                model.eval()(images)
            counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
