"""A recording belongs to the thread or task that opened it and affects neither other models nor other requests."""

import asyncio
import contextvars
import copy
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.modules import module as torch_module

import vitreous as vt
from tests.family import SMALLEST
from tests.family import tiny as family_member
from tests.parity import fill
from vitreous.explain.recorder import ACTIVE, Recorder

ROUNDS = 12
EVERYTHING = ("weights", "logits", "q", "k", "v", "output", "stream", "norms")


def tiny(**overrides):
    """With pooled cells the head reads all tokens, so the last block computes the same with and without recording."""
    options = {"depth": 3, "image_size": 32, "patch_size": 8, "class_token": False, "pool": "mean"}
    return fill(vt.create_model("vit_tiny_16", **(options | overrides)))


MODELS = {
    "vit": tiny,
    "swin": lambda: family_member("swin_tiny"),
    "window": lambda: tiny(mixer="window"),
    "points": lambda: tiny(mixer="deformable_points"),
}


def images_of(seed):
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def state(model):
    """Everything on a model that recording might change."""
    return [
        (
            path,
            type(part),
            id(part),
            part.training,
            tuple(part._forward_hooks),
            tuple(part._forward_pre_hooks),
            set(vars(part)),
        )
        for path, part in model.named_modules()
    ]


def global_hooks():
    return (dict(torch_module._global_forward_hooks), dict(torch_module._global_forward_pre_hooks))


@torch.no_grad()
def record_alone(model, images, **options):
    with vt.record(model, **({"what": EVERYTHING} | options)) as trace:
        out = model(images)
    return out, trace


def assert_same_trace(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        assert found[name].tensors.keys() == expected[name].tensors.keys()
        for what, tensor in expected[name].tensors.items():
            assert torch.equal(found[name].tensors[what], tensor), (name, what)
    for kept in ("stream", "norms"):
        assert all(torch.equal(getattr(found, kept)[name], x) for name, x in getattr(expected, kept).items())
    assert torch.equal(found.images, expected.images)


def run_in_threads(*tasks):
    """Run the tasks at once, each in a thread, from one barrier; the first error is raised here."""
    barrier = threading.Barrier(len(tasks), timeout=60)

    def run(task):
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(run, task) for task in tasks]]


def test_another_model_is_not_touched():
    recorded, other = tiny(), tiny()
    before, hooks, out = state(other), global_hooks(), other(images_of(0))
    with vt.record(recorded, what=EVERYTHING) as trace:
        assert state(other) == before
        assert global_hooks() == hooks
        assert torch.equal(other(images_of(0)), out)
        assert not len(trace)
        assert not trace.norms
        assert trace.images is None


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_another_thread_keeps_the_fast_path_and_leaves_no_trace(name):
    model, images, others = MODELS[name](), images_of(1), images_of(2)
    fast = model(others)
    expected = record_alone(model, images)
    inside, done = threading.Barrier(2, timeout=60), threading.Event()

    def run_pass():
        inside.wait()
        with torch.no_grad():
            outs = [model(others) for _ in range(ROUNDS)]
        done.set()
        return outs

    with ThreadPoolExecutor(1) as pool, vt.record(model, what=EVERYTHING) as trace:
        future = pool.submit(run_pass)
        inside.wait()
        outs = [model(images)]
        assert done.wait(60)  # the other thread ran while this one was recording, and after its forward pass
        assert_same_trace(trace, expected[1])
        outs.append(model(images))
    assert all(torch.equal(out, expected[0]) for out in outs)
    assert all(torch.equal(out, fast) for out in future.result())
    assert_same_trace(trace, expected[1])


def test_a_thread_that_only_answers_records_nothing():
    model = tiny()
    with vt.record(model, what=EVERYTHING) as trace:
        run_in_threads(lambda: model(images_of(3)))
    assert not len(trace)
    assert not trace.stream
    assert trace.images is None


@pytest.mark.parametrize("name", MODELS)
def test_two_threads_record_one_model_each_its_own(name):
    model = MODELS[name]()
    before = state(model)
    alone = [record_alone(model, images_of(seed)) for seed in (0, 1)]

    def repeat(seed):
        return [record_alone(model, images_of(seed)) for _ in range(ROUNDS)]

    for (out, trace), runs in zip(alone, run_in_threads(lambda: repeat(0), lambda: repeat(1)), strict=True):
        for found, found_trace in runs:
            assert torch.equal(found, out)
            assert_same_trace(found_trace, trace)
    assert state(model) == before


def test_recorders_come_and_go_while_others_answer():
    """Recordings open and close all the time, under requests that are on their way."""
    model = tiny()
    before, plain = state(model), model(images_of(5)).detach()
    alone = record_alone(model, images_of(6), layers="blocks.1", what="weights")

    def run_pass():
        with torch.no_grad():
            return all(torch.equal(model(images_of(5)), plain) for _ in range(4 * ROUNDS))

    def record_pass():
        for _ in range(2 * ROUNDS):
            out, trace = record_alone(model, images_of(6), layers="blocks.1", what="weights")
            assert torch.equal(out, alone[0])
            assert_same_trace(trace, alone[1])
        return True

    assert run_in_threads(run_pass, record_pass, run_pass, record_pass) == [True] * 4
    assert state(model) == before


def test_gradients_of_two_threads_do_not_mix():
    model = tiny().requires_grad_(False)

    def record_pass(number):
        with vt.record(model, gradients=True) as trace:
            model(images_of(7))[:, number].sum().backward()
        return trace.gradient_rollout()

    expected = [record_pass(number) for number in (0, 1)]
    assert not torch.equal(*expected)
    found = run_in_threads(lambda: record_pass(0), lambda: record_pass(1))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_failure_in_one_thread_leaves_the_other_recording():
    model, expected = tiny(), None
    before = state(model)
    expected = record_alone(model, images_of(0))
    failed = threading.Event()

    def fail():
        try:
            with pytest.raises(ValueError, match="smaller than one patch"), vt.record(model, what=EVERYTHING):
                model(torch.randn(1, 3, 4, 4))
        finally:
            failed.set()

    def record_pass():
        with torch.no_grad(), vt.record(model, what=EVERYTHING) as trace:
            assert failed.wait(60)
            out = model(images_of(0))
        return out, trace

    _, (out, trace) = run_in_threads(fail, record_pass)
    assert torch.equal(out, expected[0])
    assert_same_trace(trace, expected[1])
    assert state(model) == before
    assert ACTIVE.get() == ()


@pytest.mark.parametrize("failing", [False, True])
def test_everything_is_as_before(failing):
    model = tiny(num_registers=2)
    before, hooks = state(model), global_hooks()
    try:
        with vt.record(model, what=EVERYTHING):
            model(torch.randn(1, 3, *((4, 4) if failing else (64, 64))))
    except ValueError:
        assert failing
    assert state(model) == before
    assert global_hooks() == hooks
    assert ACTIVE.get() == ()


def test_a_copy_made_by_any_thread_is_a_plain_model():
    model, images = tiny(), images_of(8)
    with torch.no_grad():
        plain = model(images)
    with torch.no_grad(), vt.record(model, what=EVERYTHING) as trace:
        twins = [copy.deepcopy(model), *run_in_threads(lambda: copy.deepcopy(model))]
        for twin in twins:
            assert not any(isinstance(part, Recorder) for part in twin.modules())
            assert torch.equal(twin(images), plain)
        assert not len(trace)
        assert trace.images is None
        model(images)
    for twin in twins:
        assert_same_trace(record_alone(twin, images)[1], trace)


def test_tasks_of_one_thread_are_apart():
    """A server may answer in one task while another task waits inside its recording."""
    model, fast = tiny(), None
    with torch.no_grad():
        fast = model(images_of(1))

    async def record_pass(inside, ran):
        with torch.no_grad(), vt.record(model) as trace:
            inside.set()
            await ran.wait()
            assert not len(trace)
            model(images_of(0))
        return trace

    async def run_pass(inside, ran):
        await inside.wait()
        with torch.no_grad():
            out = model(images_of(1))
        ran.set()
        return out

    async def both():
        events = asyncio.Event(), asyncio.Event()
        return await asyncio.wait_for(asyncio.gather(record_pass(*events), run_pass(*events)), 60)

    trace, out = asyncio.run(both())
    assert torch.equal(out, fast)
    assert torch.equal(trace.images, images_of(0))


def test_a_context_copied_inside_records_no_more_after_the_with_block():
    model = tiny()
    with vt.record(model, what=EVERYTHING) as trace:
        later = contextvars.copy_context()
    with vt.record(model, what=EVERYTHING):  # keeps the hooks in place
        later.run(model, images_of(0))
    assert not len(trace)
    assert trace.images is None


def test_nothing_of_a_trace_stays_alive():
    model = tiny()
    _, trace = record_alone(model, images_of(0))
    held = [weakref.ref(trace), weakref.ref(trace["blocks.0"].weights), weakref.ref(trace.stream["blocks.0"])]
    del trace
    gc.collect()
    assert [reference() for reference in held] == [None] * 3


@pytest.mark.parametrize("name", SMALLEST)
@torch.no_grad()
def test_every_family_records_its_images(name):
    model, images = family_member(name), torch.randn(2, 3, 64, 80)
    for call in (model, model.features):
        with vt.record(model, what="norms") as trace:
            call(images)
        assert torch.equal(trace.images, images)
