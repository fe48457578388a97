"""DAT equals the model of its paper, written here as loops with the names of the original repository.

No package contains DAT, and its published weights cannot be downloaded in tests: names and shapes were copied from the
original source; outputs of the original on an image were not compared.
"""

import math
from collections import OrderedDict, defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitreous as vt
from tests.layers.test_deformable import naive_deformable
from tests.parity import TOLERANCE, error, fill, same
from vitreous.layers.attention import SelfAttention
from vitreous.layers.deformable import Deformable, DeformableAttention
from vitreous.layers.window import WindowAttention
from vitreous.models.dat import VARIANTS, DATConfig, ShiftedWindow


class MapNorm(nn.Module):
    """LayerNorm over the channels of a map."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class LocalAttention(nn.Module):
    """Window attention as a loop over windows."""

    def __init__(self, dim, num_heads, window, *, shift=0):
        super().__init__()
        self.num_heads, self.window, self.shift = num_heads, window, shift
        self.proj_qkv, self.proj_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, num_heads))
        self.register_buffer("relative_position_index", torch.zeros(window**2, window**2, dtype=torch.long))
        if shift:
            self.register_buffer("attn_mask", torch.zeros(1, window**2, window**2))

    def forward(self, x):
        qkv = self.proj_qkv(x.movedim(1, -1))
        out = torch.zeros_like(x.movedim(1, -1))
        windows = defaultdict(list)
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                windows[(row - self.shift) // self.window, (column - self.shift) // self.window].append((row, column))
        for cells in windows.values():
            rows, columns = torch.tensor(cells).T
            q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in qkv[:, rows, columns].chunk(3, -1))
            logits = torch.einsum("bqhk, bmhk -> bhqm", q, k) / math.sqrt(q.shape[-1]) + self.bias(cells)
            out[:, rows, columns] = torch.einsum("bhqm, bmhk -> bqhk", logits.softmax(-1), v).flatten(2)
        return self.proj_out(out).movedim(-1, 1)

    def bias(self, cells):
        far = self.window - 1
        rows = [[(y - v + far) * (2 * far + 1) + x - w + far for v, w in cells] for y, x in cells]
        return self.relative_position_bias_table[torch.tensor(rows)].permute(2, 0, 1)


class DAttentionBaseline(nn.Module):
    """The paper's deformable attention: an offset range factor of 2, in halves of the distance between points."""

    def __init__(self, dim, num_heads, num_groups, *, kernel, grid):
        super().__init__()
        self.num_groups, width = num_groups, dim // num_groups
        self.conv_offset = nn.Sequential(
            nn.Conv2d(width, width, kernel, 1, kernel // 2, groups=width),
            MapNorm(width),
            nn.GELU(),
            nn.Conv2d(width, 2, 1, bias=False),
        )
        for name in ("proj_q", "proj_k", "proj_v", "proj_out"):
            setattr(self, name, nn.Conv2d(dim, dim, 1))
        self.rpe_table = nn.Parameter(torch.empty(num_heads, 2 * grid[0] - 1, 2 * grid[1] - 1))

    def forward(self, x):
        return torch.stack([self.one(image) for image in x])

    def one(self, x):
        q = self.proj_q(x)
        out = naive_deformable(
            x,
            q,
            shifts=self.conv_offset(q.unflatten(0, (self.num_groups, -1))),
            make_k=lambda tokens: self.proj_k(tokens.T[:, None])[:, 0].T,
            make_v=lambda tokens: self.proj_v(tokens.T[:, None])[:, 0].T,
            table=self.rpe_table,
            num_groups=self.num_groups,
            reach=2 / 2,
        )
        return self.proj_out(out)


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.chunk = nn.Sequential(
            OrderedDict(linear1=nn.Linear(dim, 4 * dim), act=nn.GELU(), linear2=nn.Linear(4 * dim, dim))
        )

    def forward(self, x):
        return self.chunk(x.movedim(1, -1)).movedim(-1, 1)


class TransformerStage(nn.Module):
    def __init__(self, config, number, kinds, grid):
        super().__init__()
        dim, num_heads, window = config.dims[number], config.num_heads[number], config.window_size
        make = {
            "L": lambda: LocalAttention(dim, num_heads, window),
            "S": lambda: LocalAttention(dim, num_heads, window, shift=math.ceil(window / 2)),
            "D": lambda: DAttentionBaseline(
                dim, num_heads, num_heads // 4, kernel=(None, None, 5, 3)[number], grid=grid
            ),
        }
        self.layer_norms = nn.ModuleList(MapNorm(dim) for _ in range(2 * len(kinds)))
        self.mlps = nn.ModuleList(Mlp(dim) for _ in kinds)
        self.attns = nn.ModuleList(make[kind]() for kind in kinds)

    def forward(self, x):
        for index, (attention, mlp) in enumerate(zip(self.attns, self.mlps, strict=True)):
            x = x + attention(self.layer_norms[2 * index](x))
            x = x + mlp(self.layer_norms[2 * index + 1](x))
        return x


class Original(nn.Module):
    """The model with the original's names, for grids that are multiples of the window."""

    def __init__(self, config):
        super().__init__()
        dims = config.dims
        self.patch_proj = nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), MapNorm(dims[0]))
        self.stages = nn.ModuleList(
            TransformerStage(
                config,
                number,
                ("LS" if number < 2 else "LD") * (depth // 2),
                [side // 4 // 2**number for side in config.image_size],
            )
            for number, depth in enumerate(config.depths)
        )
        self.down_projs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(dims[i], dims[i + 1], 2, 2, bias=False), MapNorm(dims[i + 1])) for i in range(3)
        )
        self.cls_norm = MapNorm(dims[-1])
        self.cls_head = nn.Linear(dims[-1], config.num_classes)

    def forward(self, images):
        x = self.stages[0](self.patch_proj(images))
        for down, stage in zip(self.down_projs, self.stages[1:], strict=True):
            x = stage(down(x))
        return self.cls_head(self.cls_norm(x).mean((2, 3)))


def tiny(**options):
    """Windows of 3 cells, which are shifted by 2; one and two groups of points."""
    return DATConfig(
        **{
            "image_size": (96, 96),
            "num_classes": 7,
            "depths": (2, 2, 2, 2),
            "dims": (8, 16, 32, 64),
            "num_heads": (2, 2, 4, 8),
            "window_size": 3,
        }
        | options
    )


@pytest.mark.parametrize("image_size", [(96, 96), (96, 192)])
def test_equals_the_original_as_described(image_size):
    config = tiny(image_size=image_size)
    theirs = fill(Original(config))
    report = same(config.build(), theirs, torch.randn(2, 3, *image_size))
    assert report.source == "the original DAT"
    assert not report.adapted
    assert {name.split(".")[-1] for name in report.unused} == {"relative_position_index", "attn_mask"}


@pytest.mark.parametrize("name", VARIANTS)
def test_names_and_shapes_are_those_of_the_original(name):
    with torch.device("meta"):
        ours, theirs = vt.create_model(name), Original(VARIANTS[name])
        report = vt.load_weights(ours, theirs.state_dict())
    assert report.num_loaded == len(ours.state_dict())
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_parameters_and_macs_of_the_small_one_are_the_published():
    """50 M parameters and 9.0 G MACs, as listed for DAT-S on Papers with Code."""
    cost = vt.cost("dat_small")
    assert round(cost.parameters / 1e6) == 50
    assert round(cost.macs / 1e9, 1) == 9.0


def test_some_names_of_the_original_as_its_source_has_them():
    state = Original(tiny()).state_dict()
    assert {
        "patch_proj.1.norm.weight": (8,),
        "down_projs.2.0.weight": (64, 32, 2, 2),
        "stages.0.attns.1.relative_position_bias_table": (25, 2),
        "stages.2.layer_norms.3.norm.bias": (32,),
        "stages.2.attns.1.conv_offset.0.weight": (32, 1, 5, 5),
        "stages.3.attns.1.conv_offset.0.weight": (32, 1, 3, 3),
        "stages.3.attns.1.conv_offset.3.weight": (2, 32, 1, 1),
        "stages.3.attns.1.rpe_table": (8, 5, 5),
        "stages.3.attns.1.proj_k.weight": (64, 64, 1, 1),
        "stages.3.mlps.1.chunk.linear2.weight": (64, 256),
        "cls_norm.norm.weight": (64,),
        "cls_head.bias": (7,),
    }.items() <= {name: tuple(tensor.shape) for name, tensor in state.items()}.items()


def kinds(model):
    return [[type(block.mixer) for block in stage.blocks] for stage in model.stages]


def test_window_stages_then_alternating_windows_and_points():
    with torch.device("meta"):
        model = vt.create_model("dat_tiny")
    local, shifted, points = WindowAttention, ShiftedWindow, DeformableAttention
    assert kinds(model) == [[local, shifted], [local, shifted], [local, points] * 3, [local, points]]
    assert model.stages[0].blocks[1].mixer.partition((56, 56)).shift == (4, 4)
    assert model.stages[0].blocks[1].mixer.partition((56, 7)).shift == (4, 0)
    assert not any(block.mixer.shifted for stage in model.stages for block in stage.blocks[::2])
    assert [model.stages[stage].blocks[1].mixer.num_groups for stage in (2, 3)] == [3, 6]


def test_the_mixer_replaces_deformable_attention():
    model = vt.create_model(tiny(mixer="attention"))
    assert kinds(model)[1:3] == [[WindowAttention, ShiftedWindow], [WindowAttention, SelfAttention]]
    everywhere = vt.create_model(tiny(num_window_stages=0, mixer=Deformable(strides=(8, 4, 2, 1))))
    assert kinds(everywhere) == [[WindowAttention, DeformableAttention]] * 4
    everywhere(torch.randn(2, 3, 96, 96)).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in everywhere.parameters())


def test_any_size():
    model = fill(vt.create_model(tiny()))
    for size in ((1, 1), (57, 78), (129, 65)):
        features = model.features(torch.randn(1, 3, *size))
        assert features.tokens.isfinite().all()
        assert features.grid == tuple(-(-side // 32) for side in size)


def test_a_file_read_for_another_size_has_its_tables_resampled(tmp_path):
    vt.save(fill(vt.create_model(tiny())), tmp_path / "dat.safetensors")
    again = vt.load(tmp_path / "dat.safetensors", image_size=192)
    assert again.stages[3].blocks[1].mixer.relative.grid == (6, 6)
    assert again(torch.randn(1, 3, 192, 192)).isfinite().all()


def test_points_depend_on_the_image():
    """Shifting the map by some cells shifts the points accordingly, away from the borders."""
    mixer = fill(vt.create_model(tiny())).stages[3].blocks[1].mixer
    x = torch.randn(1, 64, 9, 9)
    here, there = (
        mixer.points(mixer.maps(mixer.q(cells.flatten(2).transpose(1, 2)), (9, 9))) for cells in (x, x.roll(2, dims=3))
    )
    moved = there[:, :, 3:8] - here[:, :, 1:6]
    assert torch.allclose(moved, torch.tensor([2 * 2 / 9, 0.0]).expand_as(moved), atol=1e-5)


BAD = [
    ({"depths": (2, 2)}, r"depths must have 4 numbers, one per stage; got \(2, 2\)"),
    ({"num_heads": (2, 2, 4, 5)}, "multiple of num_heads, got dim=64, num_heads=5"),
    ({"window_size": 0}, "window_size must be at least 1"),
    ({"mixer": "deformed"}, "got 'deformed'; did you mean 'deformable'"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_options_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        tiny(**options)
    assert "\n" not in str(caught.value)


def test_the_loop_is_the_paper_with_no_shift():
    """Without shifts, the loop is plain attention to the map sampled at the reference points."""
    x, table = torch.randn(8, 3, 4), torch.zeros(2, 5, 7)
    still = torch.zeros(1, 2, 3, 4)
    out = naive_deformable(
        x, x, shifts=still, make_k=lambda t: t, make_v=lambda t: t, table=table, num_groups=1, reach=1.0
    )
    places = torch.stack(
        torch.meshgrid((torch.arange(4) + 0.5) / 2 - 1, (torch.arange(3) + 0.5) / 1.5 - 1, indexing="xy"), -1
    )
    keys = F.grid_sample(x[None], places[None], align_corners=True)
    q, k = (part.reshape(2, 4, 12).mT for part in (x, keys))
    expected = F.scaled_dot_product_attention(q, k, k).mT.reshape(8, 3, 4)
    assert error(out, expected) < TOLERANCE
