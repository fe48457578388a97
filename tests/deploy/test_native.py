"""Native kernels compute exactly the documented arithmetic, on every instruction set that this CPU can run."""

import copy
import ctypes
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitreous as vt
from vitreous import machine
from vitreous.deploy.engine import EngineUnavailable
from vitreous.deploy.native import build, calibrate, trial
from vitreous.deploy.native.attention import MAX_KEYS, NativeAttend
from vitreous.deploy.native.convert import PrecisionPlan
from vitreous.deploy.native.engine import linear_layers, to_native
from vitreous.deploy.native.linear import (
    PRECISIONS,
    NativeLinear,
    NativeMlp,
    NativePatchEmbed,
    packing,
    quantize_weight,
)
from vitreous.deploy.native.mixed_precision import PlanSearch, relative_error, within_budget
from vitreous.layers.attention import Attend

EMULATED = Path(__file__).with_name("emulated_tiles.h")

pytestmark = pytest.mark.skipif(machine.c_compiler() is None, reason="the kernel needs a C compiler")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def kernels(folder):
    """The kernels for this CPU's vector instructions, in portable C, and for AMX tiles emulated in portable C.

    All but the last are cached, keyed by their source.
    """
    levels = {"portable": build.compile_library("portable")}
    levels["tiles"] = build.compile_library("portable", f'-DTILES="{EMULATED}"', folder=folder)
    for level in ("avx2", "avx512_vnni"):
        if build.LEVELS[level][0] <= machine.cpu_flags():
            levels[level] = build.compile_library(level)
    return {level: build.open_library(path) for level, path in levels.items()}


@pytest.fixture(params=["portable", "tiles", "avx2", "avx512_vnni"])
def kernel(request, kernels):
    if request.param not in kernels:
        pytest.skip(f"this CPU has no {request.param}")
    return request.param, kernels[request.param]


def promised(linear, x, precision, kernel, fixed=None, top=None):
    """The arithmetic documented in ``native.linear``, in float64, which is exact for these integers."""
    if precision in ("bf16", "fp32"):
        return copy.deepcopy(linear).double()(x.double())
    rules = packing(kernel)
    usual = rules.max_activation
    top = top or usual
    integers, scale = quantize_weight(linear.weight.detach().float(), precision, rules.max_weight)
    if precision == "int16":
        top = min(32767, int((2**31 - 1) / integers.abs().sum(dim=1).max()))
        step = x.abs().amax(dim=1, keepdim=True) / top
        low = torch.zeros_like(step)
    elif fixed:
        low, step = torch.full((len(x), 1), fixed[0]), torch.full((len(x), 1), fixed[1] * usual / top)
    else:
        low = x.amin(dim=1, keepdim=True).clamp(max=0)
        step = (x.amax(dim=1, keepdim=True).clamp(min=0) - low) / top
    rounded = ((x - low) / step).round() if precision == "int16" else ((x - low) / step).round().clamp(0, top)
    products = rounded.double() @ integers.double().T
    y = scale.double() * (step.double() * products + low.double() * integers.double().sum(1))
    return y if linear.bias is None else y + linear.bias.double()


def check(linear, x, precision, kernel, fixed=None):
    found = NativeLinear(linear, precision, kernel, fixed=fixed)(x)
    expected = promised(linear, x, precision, kernel, fixed)
    # a value halfway between two integers may round either way, since the inverse is off in the last digit
    bound = {"bf16": 0.02, "int16": 2e-4, "int8": 2e-3, "fp32": 1e-6}
    assert relative_error(found.double(), expected) < bound[precision]


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 3, 1), (5, 64, 16), (6, 130, 72), (97, 200, 33), (200, 48, 130), (33, 256, 48)]
)
def test_every_shape(kernel, rows, inputs, outputs):
    level, library = kernel
    linear, x = nn.Linear(inputs, outputs), torch.randn(rows, inputs) * torch.rand(rows, 1) * 5
    for precision in PRECISIONS if level == "tiles" else [precision for precision in PRECISIONS if precision != "bf16"]:
        check(linear, x, precision, library)


@pytest.mark.parametrize("fixed", [None, (-4.0, 0.04)])
@pytest.mark.parametrize(
    ("images", "tokens", "precise_tokens"),
    [(1, 1, 1), (3, 5, 1), (40, 1, 1), (9, 8, 2), (2, 3, 4), (7, 50, 3), (2, 197, 1)],
)
def test_precise_tokens_keep_more_bits(kernel, images, tokens, precise_tokens, fixed):
    """For any position in a tile of the micro-kernel and any number of them."""
    _, library = kernel
    top = packing(library).max_activation
    finer = (top + 1) ** 2 - 1
    linear, x = nn.Linear(90, 50), torch.randn(images, tokens, 90)
    found = NativeLinear(linear, "int8", library, fixed=fixed, precise_tokens=precise_tokens)(x)
    rough = NativeLinear(linear, "int8", library, fixed=fixed)(x)
    expected = promised(linear, x[:, :precise_tokens].flatten(0, 1), "int8", library, fixed, top=finer)
    assert relative_error(found[:, :precise_tokens].flatten(0, 1).double(), expected) < 3e-5
    assert torch.equal(found[:, precise_tokens:], rough[:, precise_tokens:])


@pytest.mark.parametrize("precisions", [("int8", "int8"), ("int8", "int16"), ("int16", "int8")])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 197), (300, 1)])
def test_an_mlp_equals_its_layers_with_precise_tokens(kernel, precisions, shape):
    _, library = kernel
    first = NativeLinear(nn.Linear(40, 100), precisions[0], library, precise_tokens=1, gelu=True)
    second = NativeLinear(nn.Linear(100, 40), precisions[1], library, precise_tokens=1)
    x = torch.randn(*shape, 40)
    assert relative_error(NativeMlp(first, second)(x, x), second(first(x), x)) < 1e-6


def test_the_largest_sums_of_both_halves_do_not_overflow(kernel):
    _, library = kernel
    for inputs in (1, 3000, 4200, 9000, 60000):
        linear = nn.Linear(inputs, 16, bias=False)
        nn.init.constant_(linear.weight, -1.0)
        found = NativeLinear(linear, "int8", library, precise_tokens=1)(torch.ones(2, 2, inputs))
        assert torch.allclose(found, torch.full((2, 2, 16), -float(inputs)), rtol=1e-5)


@pytest.mark.parametrize("precision", ["int16", "int8"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_do_not_overflow(kernel, precision, sign):
    """With the largest integers, where instructions accumulate in 16 bits or sums reach 2³¹."""
    _, library = kernel
    linear = nn.Linear(4096, 16, bias=False)
    nn.init.constant_(linear.weight, sign)
    found = NativeLinear(linear, precision, library)(torch.ones(7, 4096))
    assert torch.allclose(found, torch.full((7, 16), sign * 4096), rtol=1e-5)


def test_no_bias_and_leading_axes(kernel):
    _, library = kernel
    linear, x = nn.Linear(32, 20, bias=False), torch.randn(2, 3, 5, 32)
    found = NativeLinear(linear, "int16", library)(x)
    assert found.shape == (2, 3, 5, 20)
    assert relative_error(found, linear(x)) < 2e-3


def test_strided_and_empty_inputs(kernel):
    _, library = kernel
    layer = NativeLinear(linear := nn.Linear(32, 16), "int16", library)
    x = torch.randn(32, 9).T
    assert relative_error(layer(x), linear(x)) < 2e-3
    assert layer(torch.empty(0, 32)).shape == (0, 16)
    assert torch.equal(layer(torch.zeros(2, 32)), linear.bias.detach().expand(2, 16))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("precision", ["int16", "int8", "fp32"])
def test_a_non_finite_value_affects_only_its_own_row(kernel, precision, bad):
    _, library = kernel
    x = torch.randn(8, 40)
    x[3, 17] = bad
    answered = NativeLinear(nn.Linear(40, 16), precision, library)(x).isfinite().all(dim=1)
    assert answered.tolist() == [True, True, True, False, True, True, True, True]


def test_gelu_is_torchs(kernel):
    _, library = kernel
    linear, x = nn.Linear(64, 48), torch.randn(50, 64) * 4
    for precision, wrong_by in (("fp32", 2e-6), ("int16", 6e-6)):
        plain, with_gelu = (NativeLinear(linear, precision, library, gelu=gelu)(x) for gelu in (False, True))
        size = plain.abs().clamp(min=1) if precision == "int16" else 1
        assert ((with_gelu - F.gelu(plain)).abs() / size).max() < wrong_by
        difference = ((with_gelu - F.gelu(plain, approximate="tanh")).abs() / size).max()
        assert difference > 8 * wrong_by, "the test distinguishes the two GELUs"


def test_norm_scale_and_residual_can_be_fused(kernel):
    _, library = kernel
    norm, linear, x, residual = (
        nn.LayerNorm(72, eps=0.1),
        nn.Linear(72, 40),
        torch.randn(50, 72) * 3 + 1,
        torch.randn(50, 40),
    )
    norm.weight.uniform_(0.5, 2), norm.bias.normal_()
    scale = torch.rand(40) + 0.5
    found = NativeLinear(linear, "int16", library, norm=norm, scale=scale)(x, residual)
    assert relative_error(found, linear(norm(x)) * scale + residual) < 1e-3
    bare = NativeLinear(linear, "int16", library, norm=nn.LayerNorm(72, elementwise_affine=False))(x)
    assert relative_error(bare, linear(F.layer_norm(x, (72,)))) < 2e-3


@pytest.mark.parametrize("rows", [1, 3, 40, 700])
@pytest.mark.parametrize(
    "precisions", [("int16", "int16"), ("int8", "int8"), ("int8", "int16"), ("int16", "int8"), ("fp32", "fp32")]
)
def test_an_mlp_in_one_call_equals_its_layers(kernel, rows, precisions):
    _, library = kernel
    x, residual = torch.randn(rows, 48), torch.randn(rows, 24)
    first = NativeLinear(nn.Linear(48, 100), precisions[0], library, gelu=True, norm=nn.LayerNorm(48))
    second = NativeLinear(nn.Linear(100, 24), precisions[1], library)
    assert torch.equal(NativeMlp(first, second)(x, residual), second(first(x), residual))


@pytest.mark.parametrize("precisions", [("int8", "int8"), ("int8", "int16"), ("int16", "int8"), ("fp32", "int8")])
@pytest.mark.parametrize(("rows", "widths"), [(39, (18, 63, 2)), (6144, (16, 40, 16)), (8192, (16, 40, 16))])
def test_the_workspace_is_large_enough(kernel, monkeypatch, precisions, rows, widths):
    """With exactly as many bytes as the kernel requests, followed by a guard."""
    _, library = kernel
    guard, size = 2**17, 0

    def exact_buffer(num_bytes, name="workspace"):
        nonlocal size
        size, buffer = num_bytes, torch.full((num_bytes + guard,), 0xA5, dtype=torch.uint8)
        buffers.append(buffer)
        return buffer

    buffers = []
    monkeypatch.setattr("vitreous.deploy.native.linear.thread_buffer", exact_buffer)
    first = NativeLinear(nn.Linear(*widths[:2]), precisions[0], library)
    second = NativeLinear(nn.Linear(*widths[1:]), precisions[1], library)
    NativeMlp(first, second)(torch.randn(rows, widths[0]))
    assert (buffers[0][size:] == 0xA5).all()


def test_weights_that_cannot_be_quantized_are_refused(kernel):
    _, library = kernel
    broken = nn.Linear(8, 4)
    broken.weight[1, 2] = float("nan")
    with pytest.raises(EngineUnavailable, match="not finite"):
        NativeLinear(broken, "int16", library)
    with pytest.raises(EngineUnavailable, match="int8 sums over 300000 inputs overflow"):
        NativeLinear(nn.Linear(300_000, 1), "int8", library)


def test_a_default_type_changes_nothing(kernel):
    _, library = kernel
    linear, x = nn.Linear(24, 16, bias=False), torch.randn(5, 24)
    expected = linear(F.layer_norm(x, (24,)))
    torch.set_default_dtype(torch.float64)
    try:
        found = NativeLinear(linear, "int16", library, norm=nn.LayerNorm(24, elementwise_affine=False))(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert relative_error(found, expected) < 2e-3


def test_a_reused_output_is_overwritten_by_the_next(kernel):
    _, library = kernel
    layers = [NativeLinear(nn.Linear(8, 4), "int16", library, reuse_output=True) for _ in range(2)]
    first = layers[0](torch.randn(3, 8))
    kept = first.clone()
    second = layers[1](torch.randn(3, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, kept)


SHAPES = {  # queries, keys, width, depth
    "one of each": (1, 1, 1, 1),
    "odd": (7, 33, 5, 3),
    "a vision transformer's": (50, 50, 64, 64),
    "whole panels": (18, 48, 32, 48),
    "few ask many": (2, 211, 24, 72),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_attention_is_torchs(kernel, shape, with_bias):
    _, library = kernel
    n, m, width, depth = SHAPES[shape]
    q, k, v = (torch.randn(2, 3, *size) for size in ((n, width), (m, width), (m, depth)))
    bias = torch.randn(3, n, m) * 2 if with_bias else None
    attend = Attend(temperature=0.7)
    assert relative_error(NativeAttend(attend, library)(q, k, v, bias=bias), attend(q, k, v, bias=bias)) < 2e-3


def test_attention_takes_views_masks_and_peaks(kernel):
    """Strided heads, masked keys, a fully masked query, and logits of any magnitude."""
    _, library = kernel
    q, k, v = torch.randn(2, 20, 3, 4, 16).permute(2, 0, 3, 1, 4)
    mask = torch.rand(2, 1, 20, 20) > 0.4
    mask[0, :, 5] = False
    attend, native = Attend(), NativeAttend(Attend(), library)
    found = native(q, k, v, mask=mask)
    assert relative_error(found, attend(q, k, v, mask=mask)) < 2e-3
    assert not found[0, :, 5].any()
    assert found.transpose(1, 2).is_contiguous(), "so that joining the heads copies nothing"
    for size in (1e-3, 30.0, 300.0):
        assert relative_error(native(q * size, k, v), attend(q * size, k, v)) < (2e-3 if size < 100 else 2e-2)


@pytest.mark.parametrize("keys", [16_000, MAX_KEYS])
@pytest.mark.parametrize("strength", [0.0, 1.0, 50.0])
def test_attention_to_very_many_keys(kernel, keys, strength):
    """Uniform and one-hot weights: neither is lost in rounding, and no sum overflows.

    The reference is float64: in float32 torch's own sum over so many equal weights is off by 2e-4 on some CPUs.
    """
    _, library = kernel
    q, k, v = torch.randn(1, 1, 2, 8) * strength, torch.randn(1, 1, keys, 8), torch.randn(1, 1, keys, 4) + 1
    native = NativeAttend(Attend(), library)
    exact = Attend()(q.double(), k.double(), v.double())
    assert relative_error(native(q, k, v).double(), exact) < 2e-3
    assert torch.allclose(native(q, k, torch.ones_like(v)), torch.ones(4), rtol=1e-6), "weights add up to 1"


def test_more_keys_than_weights_have_bits_for_are_left_to_torch(kernel):
    _, library = kernel
    q, k, v = (torch.randn(1, 1, rows, 8) for rows in (2, MAX_KEYS + 1, MAX_KEYS + 1))
    assert torch.equal(NativeAttend(Attend(), library)(q, k, v), Attend()(q, k, v))
    fewer = k[:, :, 1:], v[:, :, 1:]
    assert not torch.equal(NativeAttend(Attend(), library)(q, *fewer), Attend()(q, *fewer))


@pytest.mark.parametrize("broken", ["q", "k", "v"])
def test_attention_propagates_nan(kernel, broken):
    _, library = kernel
    parts = {name: torch.randn(1, 2, 6, 16) for name in "qkv"}
    parts[broken][0, 1, 3, 7] = float("nan")
    finite = NativeAttend(Attend(), library)(*parts.values()).isfinite().all(dim=-1)
    assert finite[0, 0].all()
    assert not (finite[0, 1, 3] if broken == "q" else finite[0, 1].any())


def test_threads_change_nothing(kernel):
    _, library = kernel
    layer, x = NativeLinear(nn.Linear(64, 300), "int8", library), torch.randn(500, 64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = layer(x)
        torch.set_num_threads(2)
        assert torch.equal(layer(x), alone)
    finally:
        torch.set_num_threads(threads)


def test_fixed_ranges(kernel):
    _, library = kernel
    linear, x = nn.Linear(64, 32), torch.randn(40, 64)
    low, step = float(x.min()), float(x.max() - x.min()) / packing(library).max_activation
    check(linear, x, "int8", library, fixed=(low, step))
    beyond = NativeLinear(linear, "int8", library, fixed=(low, step))(x * 100)
    assert beyond.isfinite().all(), "what lies outside the range is cut to it"


def test_loading_the_kernel_leaves_small_numbers_alone(kernels):
    assert float(torch.tensor(1e-40) * 1) > 0, "a library linked with -ffast-math would have made this 0"


def test_squares_add_up():
    assert within_budget([3.0, 4.0], tolerance=5.0) == 0
    assert within_budget([4.0, 3.0], tolerance=4.9) == 1
    assert within_budget([4.0, 3.0], tolerance=1.0) == 2


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return vt.create_model("vit_tiny_16", depth=2, dim=64, num_heads=2, image_size=64, num_classes=10).eval()


@pytest.fixture(scope="module")
def native(kernels):
    if "avx2" not in kernels:
        pytest.skip("the kernel is for x86 CPUs with AVX2 or better")


def test_linear_layers_are_found_with_their_work(model):
    layers = linear_layers(model, torch.randn(2, 3, 64, 64))
    assert list(layers)[:4] == [f"blocks.0.{part}" for part in ("mixer.qkv", "mixer.proj", "mlp.fc1", "mlp.fc2")]
    assert layers["blocks.0.mixer.qkv"] == 2 * 17 * 64 * 3 * 64
    assert layers["head"] == 2 * 64 * 10


def test_the_original_stays_as_it_was(native, model):
    images = torch.randn(2, 3, 64, 64)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model(images)
    fast = to_native(model, PrecisionPlan(dict.fromkeys(linear_layers(model, images), "int16")))
    assert 0 < relative_error(fast(images), expected) < 0.01
    assert type(model.blocks[0].mlp.act) is nn.GELU
    assert type(model.blocks[0].mlp.fc1) is nn.Linear
    assert fast.class_token is model.class_token, "what stays in float is shared, not copied"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_ranges_hold_everything_that_was_seen(model):
    images = torch.randn(2, 3, 64, 64)
    ranges = calibrate.calibrate_ranges(model, images, ["blocks.0.mixer.qkv", "head"], top=127)
    low, step = ranges["blocks.0.mixer.qkv"]
    seen = model.blocks[0].norm1(model.embed(images, (4, 4)))
    assert low == pytest.approx(float(seen.min()))
    assert low + 127 * step == pytest.approx(float(seen.max()))


@pytest.mark.parametrize(
    "options", [{}, {"layer_scale": 0.3}, {"position": "rope"}, {"mlp": "swiglu"}, {"pool": "mean"}]
)
def test_block_variants_are_converted(native, options):
    torch.manual_seed(0)
    model = vt.create_model(
        "vit_tiny_16", depth=2, dim=64, num_heads=2, image_size=64, num_classes=10, **options
    ).eval()
    images = torch.randn(2, 3, 64, 80)
    fast = to_native(model, PrecisionPlan(dict.fromkeys(linear_layers(model, images), "int16")))
    assert relative_error(fast(images), model(images)) < 0.01


def test_patches_have_more_bits_than_the_rest(native, model):
    fast = to_native(model, PrecisionPlan(dict.fromkeys(linear_layers(model, torch.randn(1, 3, 64, 64)), "int8")))
    images = torch.randn(2, 3, 64, 96)
    assert fast.stem.proj.linear.precision == "int16"
    assert 0 < relative_error(fast.stem(images), model.stem(images)) < 1e-3


def test_swin_with_its_biases_and_masks(native):
    torch.manual_seed(0)
    model = vt.create_model("swin_tiny", image_size=64, depths=(2, 2, 2, 2), num_classes=10).eval()
    images = torch.randn(2, 3, 64, 96)
    fast = to_native(model, PrecisionPlan(dict.fromkeys(linear_layers(model, images), "int16")))
    assert 0 < relative_error(fast(images), model(images)) < 0.01


@pytest.mark.parametrize("name", ["vit_tiny_16", "swin_tiny"])
def test_float32_differs_in_the_order_of_sums_only(native, name):
    torch.manual_seed(0)
    options = {"depth": 2} if name == "vit_tiny_16" else {"depths": (2, 2, 2, 2)}
    model = vt.create_model(name, image_size=64, num_classes=10, **options).eval()
    images = torch.randn(3, 3, 64, 64)
    fast = to_native(model, PrecisionPlan(dict.fromkeys(linear_layers(model, images), "fp32")))
    assert not any(isinstance(module, NativeAttend) for module in fast.modules()), "which runs in int16"
    assert any(isinstance(module, NativeMlp) for module in fast.modules())
    assert any(isinstance(module, NativePatchEmbed) for module in fast.modules())
    assert relative_error(fast(images), model(images)) < 5e-6


@pytest.mark.parametrize("names", [["blocks.0.mlp.fc1"], ["blocks.1.mixer.proj"], ["blocks.0.mixer.qkv", "head"]])
def test_some_layers_alone(native, model, names):
    images = torch.randn(2, 3, 64, 64)
    fast = to_native(model, PrecisionPlan(dict.fromkeys(names, "int16")))
    assert 0 < relative_error(fast(images), model(images)) < 0.01


def test_only_float32_models_and_tiles_for_bf16(native, model):
    precisions = dict.fromkeys(linear_layers(model, torch.randn(1, 3, 64, 64)), "int8")
    with pytest.raises(EngineUnavailable, match=r"model\.float\(\)"):
        to_native(copy.deepcopy(model).double(), PrecisionPlan(precisions))
    if build.library()[0] != "amx":
        with pytest.raises(EngineUnavailable, match="AMX tiles"):
            to_native(model, PrecisionPlan(precisions, higher="bf16"))


def test_a_precise_class_token_reduces_the_error(native, model):
    images = torch.randn(48, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    layers = dict.fromkeys(linear_layers(model, images), "int8")
    expected = model(images)
    rough, precise_tokens = (
        relative_error(to_native(model, PrecisionPlan(layers, precise_tokens=tokens))(images), expected)
        for tokens in (0, 1)
    )
    assert precise_tokens < 0.8 * rough


def test_plan_meets_the_tolerance_with_as_few_bits_as_it_can(native, model):
    images = torch.randn(4, 3, 64, 64)
    expected = model(images)
    whole = dict.fromkeys(linear_layers(model, images), "int8")
    rough = relative_error(to_native(model, PrecisionPlan(whole))(images), expected)
    counts = []
    for tolerance in (1e-6, 0.5 * rough, 0.8 * rough, 2 * rough):
        plan = PlanSearch(model, images, "int8", "int16", tolerance).run()
        error = relative_error(to_native(model, plan)(images), expected)
        assert error <= tolerance or plan.count("int8") == 0
        counts.append(plan.count("int8"))
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 9
    assert 0 < counts[2] < 9


def test_with_a_precise_token_fewer_layers_need_higher_precision(native, model):
    images = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    whole = dict.fromkeys(linear_layers(model, images), "int8")
    found, expected = to_native(model, PrecisionPlan(whole))(images), model(images)
    rough = max(relative_error(found[:count], expected[:count]) for count in (1, 16))
    plans = [PlanSearch(model, images, "int8", "int16", 0.8 * rough, precise_tokens).run() for precise_tokens in (0, 1)]
    assert [plan.precise_tokens for plan in plans] == [0, 1]
    assert plans[1].count("int8") > plans[0].count("int8")


def test_the_tolerance_holds_for_a_single_image_too(native, model):
    images = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    layers, expected = linear_layers(model, images), model(images)
    found = to_native(model, PrecisionPlan(dict.fromkeys(layers, "int8")))(images)
    errors = [relative_error(one[None], other[None]) for one, other in zip(found, expected, strict=True)]
    worst = max(range(16), key=errors.__getitem__)
    tolerance = 1.2 * relative_error(found, expected)
    assert errors[worst] > tolerance, "all together are within it, one is not"
    plan = PlanSearch(model, images.roll(-worst, dims=0), "int8", "int16", tolerance).run()
    first = images[worst : worst + 1]
    assert relative_error(to_native(model, plan)(first), model(first)) <= tolerance


def test_the_library_is_compiled_once(folder, monkeypatch):
    first = build.compile_library("portable", "-O0", folder=folder)
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert build.compile_library("portable", "-O0", folder=folder) == first


@pytest.fixture
def forgotten():
    build.library_for.cache_clear()
    yield
    build.library_for.cache_clear()


def test_without_a_compiler(monkeypatch, forgotten, tmp_path):
    monkeypatch.setattr(machine, "c_compiler", lambda: None)
    with pytest.raises(EngineUnavailable, match="no C compiler found"):
        build.compile_library("portable", folder=tmp_path)


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "c_compiler", lambda: shutil.which("false"))
    with pytest.raises(EngineUnavailable, match="failed to compile the kernels"):
        build.compile_library("portable", folder=tmp_path)
    assert not list(tmp_path.iterdir()), "nothing half-made is left"


def test_without_the_instructions(monkeypatch, forgotten):
    monkeypatch.setenv("VITREOUS_WITHOUT", "avx2,amx_tile,avx512_vnni")
    with pytest.raises(EngineUnavailable, match="AVX2 or better"):
        build.library()


def test_an_instruction_that_ends_the_process_is_passed_over(monkeypatch, forgotten, kernels):
    """Some virtual machines advertise AMX and kill processes that use it: the self-test fails, the next level runs."""
    portable = build.compile_library("portable")
    monkeypatch.setattr(build, "LEVELS", {"amx": (frozenset(), ()), "avx2": (frozenset(), ())})
    monkeypatch.setattr(build, "compile_library", lambda level: portable.with_name(f"{level}.so"))
    monkeypatch.setattr(build, "open_library", lambda path: ctypes.CDLL(str(portable)))
    monkeypatch.setattr(machine, "survives", lambda program: "amx" not in program)
    assert build.library()[0] == "avx2"


def test_the_trial_finds_a_wrong_kernel(monkeypatch, kernels):
    path = build.compile_library("portable")
    trial.main(str(path))
    monkeypatch.setattr(trial, "NativeLinear", lambda linear, precision, library: lambda x: linear(x) * 1.1)
    with pytest.raises(SystemExit, match="int16: relative error"):
        trial.main(str(path))
