"""Exercises: correct answers pass, mistakes get a specific message, and answers are never overwritten."""

import inspect
import sys
from pathlib import Path

import pytest

from vitreous.cli import main
from vitreous.lab.exercise import check_exercise, describe_progress, hand_out
from vitreous.lab.exercises.checks import e07_cost
from vitreous.lab.exercises.judge import checks_of, judge
from vitreous.lab.exercises.result import State, without_vague
from vitreous.lab.exercises.table import EXERCISES, find_exercise
from vitreous.lab.table import NAMES

SOLUTIONS = Path(__file__).parent / "solutions"


@pytest.fixture(autouse=True)
def _earlier_answers(monkeypatch):
    """Let the last exercise's solution import that of the first."""
    monkeypatch.syspath_prepend(SOLUTIONS)


def judged(exercise, source, folder):
    path = folder / exercise.file.name
    path.write_text(source)
    return list(judge(exercise, path))


def failures(results):
    """Messages shown to the learner."""
    return " | ".join(result.message for result in without_vague(results) if result.state is State.FAILED)


def solution(exercise):
    return (SOLUTIONS / exercise.file.name).read_text()


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_a_correct_answer_passes(exercise, tmp_path):
    results = judged(exercise, solution(exercise), tmp_path)
    assert [result for result in results if result.state is not State.PASSED] == []
    assert len(results) >= 6


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_stub_is_not_written_yet(exercise, tmp_path):
    states = [result.state for result in judge(exercise, hand_out(exercise.number, tmp_path))]
    blanks = exercise.file.read_text().count("raise NotImplementedError")
    assert states.count(State.NOT_WRITTEN) == blanks
    assert set(states) <= {State.NOT_WRITTEN, State.WAITING}


#: Exercise, text of the solution, its replacement by a mistake, and words expected in the message.
WRONG = [
    (1, ".permute(0, 2, 4, 1, 3, 5)", "", "in memory order"),
    (1, "(0, 2, 4, 1, 3, 5)", "(0, 4, 2, 1, 3, 5)", "ordered column by column"),
    (1, "(0, 2, 4, 1, 3, 5)", "(0, 2, 4, 3, 5, 1)", "channels of each pixel are interleaved"),
    (1, "(0, 2, 4, 1, 3, 5)", "(0, 2, 4, 1, 5, 3)", "swap its two pixel axes"),
    (1, "y // p, p, x // p, p", "x // p, p, y // p, p", "mixes the colors of several patches"),
    (1, "(b, (y // p) * (x // p), c * p * p)", "(b * (y // p) * (x // p), c * p * p)", "keep the batch axis separate"),
    (1, "c * p * p)", "c * p * p).transpose(1, 2)", "swap the last two axes"),
    (2, " / q.shape[-1] ** 0.5", "", "not divided by √d"),
    (2, "q.shape[-1] ** 0.5", "q.shape[-1]", "divided by d, not by √d"),
    (2, "q.shape[-1] ** 0.5", "k.shape[-2] ** 0.5", "square root of the number of keys"),
    (2, "softmax(dim=-1)", "softmax(dim=-2)", "runs along the wrong axis (queries, not keys)"),
    (2, "logits.softmax(dim=-1)", "logits.exp() / logits.exp().sum(-1, keepdim=True)", "exp overflows"),
    (2, "logits.softmax(dim=-1)", "logits", "is the softmax taken last"),
    (2, "return output, weights", "return weights, output", "return the output first"),
    (2, "return output, weights", "return output", "two tensors are expected"),
    (2, "k.transpose(-2, -1)", "k.transpose(0, 1)", "line 5, 'logits = q @ k.transpose(0, 1)'"),
    (3, "layer(tokens)[:, order]\n", "layer(tokens)\n", "2 is the invariance gap"),
    (3, "layer(tokens[:, order])\n", "layer(tokens)[:, order]\n", "as if order did not matter"),
    (3, "shuffled_after).abs().max()", "shuffled_after).abs().mean()", "must not be averaged away"),
    (3, "shuffled_after).abs().max()", "shuffled_after).max()", "absolute values"),
    (3, "shuffled_after).abs().max()", "shuffled_after)[0].abs().max()", "compare all images"),
    (3, "- layer(tokens)).abs", "- layer(tokens)[:, order]).abs", "3 is the equivariance gap"),
    (3, ".item()", "", None),
    (4, "[waves(rows, dim // 2), waves(columns, dim // 2)]", "[waves(columns, dim // 2), waves(rows, dim // 2)]",
     "the first half of the channels must encode the row"),
    (4, "torch.arange(0, half, 2) / half", "torch.arange(0, half, 2) / (2 * half)", "instead of 2i/h"),
    (4, "torch.arange(0, half, 2) / half", "torch.arange(0, half // 2) / half", "instead of 2i/h"),
    (4, "dim=-1).flatten(1)", "dim=-2).flatten(1)", "all sines come first"),
    (4, "[angles.sin(), angles.cos()]", "[angles.cos(), angles.sin()]", "cosines come before sines"),
    (4, "table[:num_prefix], table[num_prefix:]", "table[:1], table[1:]",
     "called as resample(tensor (6, 4), (2, 3), (4, 6), 0)"),
    (4, "torch.cat([prefix, image[0].flatten(1).T])", "image[0].flatten(1).T", "the class row is missing"),
    (4, "cells.T.reshape(1, -1, *old_grid)", "cells.reshape(1, -1, *old_grid)", "channels got mixed"),
    (4, ", antialias=True", "", "antialias=True is missing"),
    (4, 'mode="bicubic"', 'mode="bilinear"', "bilinear, not bicubic"),
    (5, "/ k**0.5", "/ d**0.5", "a head has only k = d/h channels"),
    (5, "/ k**0.5", "", "not divided by √k"),
    (5, "out = out.transpose(1, 2)", "out = out", "flattened before the tokens were moved in front"),
    (5, "return proj(out.reshape(b, n, d))", "return out.reshape(b, n, d)", "proj is missing"),
    (5, "(b, n, 3, num_heads, k).permute(2, 0, 3, 1, 4)", "(b, n, num_heads, 3, k).permute(3, 0, 2, 1, 4)",
     "split into heads first"),
    (5, "(b, n, 3, num_heads, k).permute(2, 0, 3, 1, 4)", "(b, n, 3, k, num_heads).permute(2, 0, 4, 1, 3)",
     "every h-th channel"),
    (5, "queries, keys, values =", "keys, queries, values =", "queries and keys are swapped"),
    (5, "permute(2, 0, 3, 1, 4)", "permute(2, 1, 3, 0, 4)", "the attention runs across images"),
    (5, "k = d // num_heads", "num_heads, k = 1, d", "num_heads is not used"),
    (6, "x = x + attention(norm1(x))\n    return x + mlp(norm2(x))",
     "x = norm1(x + attention(x))\n    return norm2(x + mlp(x))", "5.5 is Post-LN"),
    (6, "return x + mlp", "return mlp", "the second sum is missing"),
    (6, "x = x + attention(norm1(x))", "x = attention(norm1(x))", "the first sum is missing"),
    (6, "x = x + attention(norm1(x))\n    return x +", "return x + attention(norm1(x)) +", "reads the block's input"),
    (6, "x + mlp(norm2(x))", "x + mlp(norm1(x))", "norm1, attention, norm1, mlp"),
    (6, "x = x + attention(norm1(x))", "x += attention(norm1(x))", "changes its input number 1 in place"),
    (6, "return x + mlp(norm2(x))", "x = x + mlp(norm2(x))", "does it end with return?"),
    (6, "x = x + attention(norm1(x))", "x = norm1(x)\n    x = x + attention(x)", "must not be normalized"),
    (7, "attention = 4 * linear", "attention = 3 * linear", "the output projection of attention"),
    (7, "return a * b + b", "return a * b", "all biases of linear layers"),
    (7, "** 2 + 1\n    norm", "** 2\n    norm", "its position"),
    (7, "block = norm + attention + norm + mlp", "block = norm + attention + mlp", "one of the two norms"),
    (7, "n = patches + 1", "n = patches", "the class token's share of N"),
    (7, "attention = 2 * n * n * dim", "attention = n * n * dim", "one of the two products"),
    (7, "return embedding + depth * (projections + attention + mlp) + head",
     "return 2 * (embedding + depth * (projections + attention + mlp) + head)", "these are FLOPs"),
    (7, "head = dim * num_classes", "head = n * dim * num_classes", "it reads the class token only"),
    (7, "embedding = patches * 3", "embedding = n * 3", "the class token is not projected from pixels"),
    (8, "torch.where(weights > 0, weights * weights.clamp(min=1e-30).log(), 0.0)", "weights * weights.log()",
     "0 · ln 0 became NaN"),
    (8, ".log()", ".log2()", "in bits (log2)"),
    (8, "-terms.sum(dim=-1)", "-terms.sum(dim=-2)", "the sum runs over queries"),
    (8, "-terms.sum", "terms.sum", "the sign is missing"),
    (8, ".sum(dim=-1).mean(dim=-1)", ".sum(dim=(-1, -2))", "3 is the sum over queries"),
    (8, "cells = cells / cells.sum(dim=-1, keepdim=True)\n", "\n", "divide every row by its sum"),
    (8, "weights[:, num_prefix:, num_prefix:]", "weights[:, : len(y), : len(y)]", "the last patch was left out"),
    (8, ".float().sqrt()", ".float()", "the distances are squared"),
    (8, "grid[0]).repeat_interleave(grid[1])\n    x = torch.arange(grid[1]).repeat(grid[0])",
     "grid[1]).repeat_interleave(grid[0])\n    x = torch.arange(grid[0]).repeat(grid[1])", "are swapped"),
    (9, "step @ result", "result @ step", "wrong order"),
    (9, "(layer.mean(dim=1) + identity) / 2", "layer.mean(dim=1)", "the residual is missing"),
    (9, "(layer.mean(dim=1) + identity) / 2", "layer.mean(dim=1) + identity", "was not halved"),
    (9, "layer.mean(dim=1)", "layer.sum(dim=1)", "are heads averaged"),
    (9, "layer.mean(dim=1)", "layer[:, 0]", "only the first head"),
    (9, "layer.mean(dim=1)", "layer.mean(dim=(0, 1))", "the batch axis is missing"),
    (9, "step @ result", "step * result", "elementwise"),
    (9, "rolled[:, 0, 1:]", "rolled[:, 1:, 0]", "the class token's column"),
    (9, "rolled[:, 0, 1:]", "rolled[:, 0, :-1]", "the last patch is not"),
    (10, "        x = x + self.positions\n", "", "positions are not added"),
    (10, "x = self.norm(x)", "pass", "the final norm is missing"),
    (10, "self.head(x[:, 0])", "self.head(x.mean(dim=1))", "the mean of all tokens is read"),
    (10, "[token, patches]", "[patches, token]", "the class token is last"),
    (10, "self.head(x[:, 0])", "self.head(x)", "the head was applied to all tokens"),
    (10, "self.head(x[:, 0])", "self.head(x[:, 0]).softmax(-1)", "omit the softmax"),
    (10, "    optimizer.zero_grad()\n", "", "gradients accumulate"),
    (10, "    loss.backward()\n    optimizer.step()\n", "    loss.backward()\n", "the weights do not change"),
    (10, "cross_entropy(model(images), labels)", "cross_entropy(model(images).softmax(-1), labels)",
     "softmax was taken before cross-entropy"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "right", "wrong", "words"), WRONG, ids=[f"{row[0]}-{row[3]}" for row in WRONG])
def test_a_mistake_is_named(number, right, wrong, words, tmp_path, monkeypatch):
    exercise = find_exercise(str(number))
    monkeypatch.setattr(sys.modules["vitreous.lab.exercises.judge"], "checks_of", without_training)
    assert right in solution(exercise)
    found = failures(judged(exercise, solution(exercise).replace(right, wrong), tmp_path))
    if words is None:
        assert found == ""
    else:
        assert words in found


def without_training(exercise):
    return [one for one in checks_of(exercise) if one.__name__ != "check_learns"]


def test_a_known_cause_hides_vague_messages(tmp_path):
    results = judged(EXERCISES[1], solution(EXERCISES[1]).replace("softmax(dim=-1)", "softmax(dim=-2)"), tmp_path)
    assert sum(result.state is State.FAILED for result in results) > 2
    assert failures(results).strip(" |").count("|") == 0
    unknown = judged(EXERCISES[1], solution(EXERCISES[1]).replace("weights @ v", "weights @ v + 1"), tmp_path)
    assert "the weights are right, the output is not" in failures(unknown)


def test_every_exercise_tests_at_least_three_mistakes():
    counts = [sum(row[0] == exercise.number and row[3] is not None for row in WRONG) for exercise in EXERCISES]
    assert min(counts) >= 3


@pytest.mark.slow
def test_a_vit_without_positions_does_not_learn(tmp_path):
    source = solution(EXERCISES[9]).replace("        x = x + self.positions\n", "")
    assert "chance is 25 %" in failures(judged(EXERCISES[9], source, tmp_path))


BROKEN = [
    ("def patchify(images, p)\n    return images\n", "line 1, 'def patchify(images, p)': SyntaxError"),
    ("import nowhere_to_be_found\n", "line 1, 'import nowhere_to_be_found': ModuleNotFoundError"),
    ("def patches(images, p):\n    return images\n", "there is no patchify in the file"),
    ("def patchify(images, p):\n    return None\n", "returns None"),
    ("def patchify(images, p):\n    return [1]\n", "a list, not a tensor"),
    ("def patchify(images, p):\n    exit()\n", "remove exit()"),
    (
        "def patchify(images, p):\n    return images.reshape(7)\n",
        "line 2, 'return images.reshape(7)': RuntimeError: shape '[7]' is invalid for input of size 576 "
        "(called as patchify(tensor (2, 3, 8, 12), 4))",
    ),
]


@pytest.mark.parametrize(("source", "message"), BROKEN, ids=[row[1] for row in BROKEN])
def test_errors_name_the_line_of_the_learners_file(source, message, tmp_path):
    assert message in failures(judged(EXERCISES[0], source, tmp_path))


@pytest.mark.parametrize("parts", [e07_cost.parameter_parts, e07_cost.mac_parts])
def test_a_missing_part_of_the_cost_is_unambiguous(parts):
    sizes = list(parts(*e07_cost.UNEVEN).values())
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_table_is_complete(exercise):
    assert exercise.file.is_file()
    assert exercise.task.startswith(f"Exercise {exercise.number}: ")
    assert set(exercise.claims) <= set(NAMES)
    assert "By hand" in exercise.task
    blanks = {name for one in checks_of(exercise) for name in inspect.signature(one).parameters}
    assert all(f" {name}(" in exercise.file.read_text() for name in blanks)
    assert all(one.__doc__ and one.__doc__.endswith(".") for one in checks_of(exercise))


def test_starting_an_exercise_never_overwrites(tmp_path):
    folder = tmp_path / "new" / "exercises"
    path = hand_out(3, folder)
    assert path.read_text() == EXERCISES[2].file.read_text()
    path.write_text("my work")
    assert hand_out("permutation", folder).read_text() == "my work"
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write"):
        hand_out(3, tmp_path / "file")


def test_checks_run_in_a_subprocess(tmp_path, capfd):
    """Checks run in a subprocess, and answers may print."""
    path = hand_out(6, tmp_path)
    path.write_text("print('my own words')\n" + solution(EXERCISES[5]))
    assert {result.state for result in check_exercise(6, path)} == {State.PASSED}
    assert "my own words" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"), [("while True: pass", "an infinite loop"), ("import os; os._exit(3)", "Python exited")]
)
def test_an_answer_cannot_block_or_kill_the_check(line, words, tmp_path):
    path = hand_out(6, tmp_path)
    path.write_text(f"def block(x, norm1, attention, norm2, mlp):\n    {line}\n")
    (result,) = check_exercise(6, path, seconds=2)
    assert result.title == "The shape is (b, n, d)"
    assert words in result.message


def run(capsys, *words):
    try:
        code = main(["lab", "exercise", *map(str, words)])
    except SystemExit as caught:
        code = caught.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def in_process(monkeypatch):
    """Run checks without a subprocess, which takes seconds and is tested separately."""
    monkeypatch.setattr(
        "vitreous.cli.exercise.run_checks", lambda number, path: list(judge(find_exercise(str(number)), path.resolve()))
    )


def test_an_exercise_from_start_to_finish(tmp_path, capsys, in_process, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, 6)
    assert code == 0
    assert "x ← x + attention(norm1(x))" in out
    assert "Write your solution in: exercises/e06_block.py" in out
    assert describe_progress(EXERCISES[5], Path("exercises")) == "started"

    code, out, _ = run(capsys, 6, "--check")
    assert code == 1
    assert "not written yet" in out

    path = Path("exercises/e06_block.py")
    path.write_text(solution(EXERCISES[5]).replace("return x + mlp", "return mlp"))
    assert describe_progress(EXERCISES[5], Path("exercises")) == "changed, not checked"
    code, out, _ = run(capsys, 6, "--check")
    assert code == 1
    assert "✗" in out
    assert "the second sum is missing" in out
    assert "checks pass" in describe_progress(EXERCISES[5], Path("exercises"))

    path.write_text(solution(EXERCISES[5]))
    code, out, _ = run(capsys, 6, "--check")
    assert code == 0
    assert "vitreous lab run norm_placement" in out
    assert "Next: vitreous lab exercise 7" in out
    assert "left unchanged" in run(capsys, 6)[1]

    code, out, _ = run(capsys)
    assert code == 0
    assert "done" in out
    assert all(exercise.title in out for exercise in EXERCISES)
    assert "Two lines" in run(capsys, 6, "--hint")[1]


ERRORS = [
    (["11"], "there is no exercise 11; they are numbered from 1 to 10"),
    (["0"], "there is no exercise 0"),
    (["atention"], "did you mean 'attention'?"),
    (["4", "--check"], "vitreous lab exercise 4 creates it"),
    (["--check"], "give the number of an exercise"),
]


@pytest.mark.parametrize(("words", "message"), ERRORS)
def test_errors_are_one_line(words, message, tmp_path, capsys):
    code, _, err = run(capsys, *words, "--folder", tmp_path)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
