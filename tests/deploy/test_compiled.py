"""Compiled blocks equal the model, are compiled once, cached, and loaded again without a compiler."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import vitreous as vt
from vitreous.deploy.compiled import packages
from vitreous.deploy.compiled.engine import MatmulAttend, compile_blocks, copy_sharing_weights, record_block_calls
from vitreous.deploy.compiled.packages import Package, external_calls
from vitreous.deploy.engine import EngineUnavailable
from vitreous.layers.attention import Attend

SMALL_VIT = {"image_size": 32, "patch_size": 8, "dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}


def small_vit(**options):
    return vt.create_model("vit_tiny_16", **SMALL_VIT | options).eval()


def small_swin():
    return vt.create_model("swin_tiny", image_size=56, depths=(2,), dims=(16,), num_heads=(2,), num_classes=5).eval()


def compiling(monkeypatch):
    """Record the programs that are compiled from now on."""
    compiled = []
    compile_in_subprocess = packages.compile_in_subprocess
    monkeypatch.setattr(
        packages, "compile_in_subprocess", lambda *args: (compiled.append(args), compile_in_subprocess(*args))
    )
    return compiled


def forbid_compiling(monkeypatch):
    monkeypatch.setattr(packages, "compile_in_subprocess", lambda *args: pytest.fail("compiled again"))


def kinds(model, images):
    calls = record_block_calls(copy_sharing_weights(model).eval(), images)
    return {Package(call.bound(torch.float32, True), call.x).name for call in calls}


def agrees(fast, model, images):
    with torch.no_grad():
        for count in (1, 2, 3, len(images)):
            torch.testing.assert_close(fast(images[:count]), model(images[:count]), rtol=1e-5, atol=1e-5)


def settings_of_torch():
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    settings = inductor.get_config_copy(), dynamo.get_config_copy(), dict(os.environ)
    return *settings, torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("packages")


def test_blocks_that_differ_in_weights_and_drop_rates_alone_are_one_kind():
    images = torch.randn(2, 3, 32, 32)
    assert len(kinds(small_vit(drop_path_rate=0.2, drop_rate=0.1), images)) == 1
    assert kinds(small_vit(), images) == kinds(small_vit(drop_path_rate=0.2), images)
    assert len(kinds(small_swin(), torch.randn(2, 3, 56, 56))) == 2  # shifted or not


@pytest.mark.parametrize("options", [{"num_heads": 4}, {"mlp": "gelu_tanh"}, {"norm_eps": 1e-3}, {"patch_size": 16}])
def test_other_settings_and_grids_are_other_kinds(options):
    images = torch.randn(2, 3, 32, 32)
    assert kinds(small_vit(), images).isdisjoint(kinds(small_vit(**options), images))


def test_other_threads_and_bfloat16_weights_are_other_packages():
    model, images = small_vit(), torch.randn(2, 3, 32, 32)
    call, other, *_ = record_block_calls(copy_sharing_weights(model), images)

    def name(call, dtype):
        return Package(call.bound(dtype, True), call.x).name

    plain = name(call, torch.float32)
    torch.set_num_threads(2)
    assert name(call, torch.float32) != plain
    assert name(call, torch.bfloat16) != name(other, torch.bfloat16)


def test_without_a_compiler_it_is_unfit(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineUnavailable, match="no C\\+\\+ compiler found"):
        compile_blocks(small_vit(), torch.randn(2, 3, 32, 32), cache=tmp_path)


def test_a_compiler_that_dies_is_unfit(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "COMPILER", tmp_path / "dies.py")
    (tmp_path / "dies.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(EngineUnavailable, match="signal 4"):
        packages.compile_in_subprocess(tmp_path / "program", tmp_path / "package", {})
    (tmp_path / "dies.py").write_text("raise RuntimeError('no such kernel')")
    with pytest.raises(EngineUnavailable, match="no such kernel"):
        packages.compile_in_subprocess(tmp_path / "program", tmp_path / "package", {})


def test_weights_made_in_inference_mode_can_be_traced(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "compile_in_subprocess", lambda program, package, options: program.rename(package))
    with torch.inference_mode():
        model, images = small_swin(), torch.randn(2, 3, 56, 56)
        with pytest.raises(EngineUnavailable, match="torch cannot load a block"):  # since it is not compiled
            compile_blocks(model, images, cache=tmp_path)
    assert len(list(tmp_path.glob("*.pt2"))) == 2


def test_other_precisions_are_unfit(tmp_path):
    with pytest.raises(EngineUnavailable, match="float16"):
        compile_blocks(small_vit(), torch.randn(2, 3, 32, 32), dtype=torch.float16, cache=tmp_path)
    with pytest.raises(EngineUnavailable, match="only float32 models"):
        compile_blocks(small_vit().double(), torch.randn(2, 3, 32, 32), cache=tmp_path)


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("aoti_torch_cpu_addmm_out(buf4, qkv_bias, x, w, 1L, 1L);", ["aoti_torch_cpu_addmm_out"]),
        (
            "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(q, k, v)",
            ["aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu"],
        ),
        ("aoti_torch_cpu_mkldnn__linear_pointwise(a, b)", ["aoti_torch_cpu_mkldnn__linear_pointwise"]),
        ("aoti_torch_proxy_executor_call_function(p, 0)", ["aoti_torch_proxy_executor_call_function"]),
        ("extern_kernels.bmm(a, b, out=c); extern_kernels.mm(a, b)", ["extern_kernels.bmm", "extern_kernels.mm"]),
        ("torch.ops.mkldnn._linear_pointwise.default(x)", ["torch.ops.mkldnn._linear_pointwise"]),
        ("at::native::cpublas::brgemm(M, N, K)", ["cpublas::brgemm"]),
        ("at::addmm(a, b, c); at::mm(a, b);", ["at::addmm", "at::mm"]),
        ("mkldnn_convolution(x)", ["mkldnn_convolution"]),
    ],
)
def test_calls_out_are_found(code, calls):
    assert external_calls(code) == calls


def test_code_that_runs_alone_calls_nothing_out():
    assert not external_calls(
        """
        extern "C" void cpp_fused_native_layer_norm_0(const at::BFloat16* in_ptr0, float* out_ptr0) {
            auto tmp0 = at::vec::Vectorized<at::BFloat16>::loadu(in_ptr0, 8);
            auto tmp1 = at::vec::convert<float>(tmp0);
            cpp_bmm_micro_gemm<static_cast<bool>(false)>(amx_state, &(W[0]), 32);
        }
        aoti_torch_empty_strided(2, size, stride, cached_torch_dtype_bfloat16, &buf0_handle);
        aoti_torch_get_data_ptr(buf0, &pointer);
        """
    )


def test_products_and_a_softmax_are_attention():
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    mask = torch.rand(2, 4, 6, 6) < 0.5
    mask[0, 0, 0] = False
    bias = torch.randn(4, 6, 6)
    for options in ({}, {"bias": bias}, {"mask": mask}, {"bias": bias, "mask": mask}):
        for attend in (Attend(), Attend(temperature=0.5), Attend(scaled=False)):
            expected = attend.mix(attend.weights(q, k, **options), k, v)
            torch.testing.assert_close(MatmulAttend(attend)(q, k, v, **options), expected)


def test_unsafe_bfloat16_leaves_no_fused_attention(monkeypatch):
    call = record_block_calls(copy_sharing_weights(small_vit()), torch.randn(2, 3, 32, 32))[0]
    bound = call.bound(torch.bfloat16, False)
    assert isinstance(bound.block.mixer.attend, MatmulAttend)
    assert isinstance(call.block.mixer.attend, Attend)
    assert Package(bound, call.x, False).options()["max_autotune_gemm_backends"] == "CPP"


def test_a_package_that_calls_out_is_refused(monkeypatch, tmp_path):
    call = record_block_calls(copy_sharing_weights(small_vit()), torch.randn(2, 3, 32, 32))[0]
    package = Package(call.bound(torch.bfloat16, False), call.x, False)
    monkeypatch.setattr(packages, "export", lambda *args: None)
    monkeypatch.setattr(packages, "compile_in_subprocess", lambda *args: None)
    monkeypatch.setattr(packages, "source_of", lambda path: "aoti_torch_cpu_bmm_out(a, b, c);")
    with pytest.raises(EngineUnavailable, match="calls aoti_torch_cpu_bmm_out"):
        package.compile(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_vit_is_compiled_once_kept_and_found_again(monkeypatch, cache):
    model, images = small_vit(drop_path_rate=0.1), torch.randn(5, 3, 32, 32)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compiled, messages, before = compiling(monkeypatch), [], settings_of_torch()
    fast = compile_blocks(model, images[:1], cache=cache, progress=messages.append)
    assert settings_of_torch() == before
    assert len(compiled) == 1
    assert messages == ["compiling block 1 of 1"]
    assert [path.suffix for path in cache.iterdir()] == [".pt2"]
    agrees(fast, model, images)
    with pytest.raises(ValueError, match="compiled for images of 32×32 pixels, got 40×32"):
        fast(torch.randn(1, 3, 40, 32))
    with torch.inference_mode():
        torch.testing.assert_close(fast(images), model(images), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())

    forbid_compiling(monkeypatch)
    other = small_vit()
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.normal_(std=0.2)
    fast = compile_blocks(other, images, cache=cache)  # a kept package runs other weights
    agrees(fast, other, images)
    with torch.no_grad():
        other.blocks[1].mlp.fc1.weight.mul_(2.0)  # and shares them
        other.blocks[2].mixer.proj.bias.add_(1.0)
    agrees(fast, other, images)


@pytest.mark.slow
def test_a_second_start_neither_compiles_nor_traces(monkeypatch, cache):
    compile_blocks(small_vit(), torch.randn(2, 3, 32, 32), cache=cache)
    start = f"""
        import sys, torch, vitreous as vt
        from pathlib import Path
        from vitreous.deploy.compiled import engine as inductor
        torch.set_num_threads(1)
        inductor.check_cpp_compiler = None
        model, images = vt.create_model("vit_tiny_16", **{SMALL_VIT}), torch.zeros(4, 3, 32, 32)
        assert inductor.compile_blocks(model, images[:1], cache=Path({str(cache)!r}))(images).shape == (4, 5)
        assert not [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(start)], check=True)


@pytest.mark.slow
def test_a_broken_file_is_compiled_again(monkeypatch, cache):
    model, images = small_vit(), torch.randn(5, 3, 32, 32)
    compile_blocks(model, images, cache=cache)
    (file,) = cache.glob("*.pt2")
    whole = file.read_bytes()
    for broken in (b"", b"no archive", whole[: len(whole) // 2]):
        file.write_bytes(broken)
        monkeypatch.setattr(packages.Package, "compile", lambda self, folder: (folder / self.name).write_bytes(whole))
        agrees(compile_blocks(model, images, cache=cache), model, images)


@pytest.mark.slow
def test_swin_and_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    model, images, messages = small_swin(), torch.randn(5, 3, 56, 56), []
    compiled = compiling(monkeypatch)
    (tmp_path / "file").touch()
    fast = compile_blocks(model, images, cache=tmp_path / "file" / "folder", progress=messages.append)
    assert len(compiled) == 2
    assert "not cached" in messages[0]
    agrees(fast, model, images)
