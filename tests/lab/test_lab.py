"""The laboratory end to end: running, caching, pages, the command line."""

import json
import re
from dataclasses import replace

import pytest

from vitreous.cli import main
from vitreous.lab.claims import dot_product_variance
from vitreous.lab.formula import as_svg
from vitreous.lab.markdown import read_results, write_pages
from vitreous.lab.outcome import Verdict
from vitreous.lab.page import write_page
from vitreous.lab.run import read_cached, run_all, run_claim
from vitreous.lab.table import NAMES, find_experiment
from vitreous.lab.trial import Trial

NAME = "dot_product_variance"
QUICK = Trial(quick=True)


@pytest.fixture(scope="module")
def outcome():
    return run_claim(NAME, QUICK)


def test_there_are_sixty_claims_in_order():
    assert len(NAMES) == len(set(NAMES)) == 60
    assert find_experiment("5").name == NAME
    assert find_experiment(NAME).number == 5


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_complete(name):
    claim = find_experiment(name).claim
    assert claim.sources
    for text in (claim.statement, claim.right, claim.meaning):
        assert text.rstrip(")")[-1] in ".?!", f"{name}: a sentence needs a period: {text[-20:]!r}"
        assert "  " not in text
    assert claim.title[0].isupper()
    assert not claim.title.endswith(".")
    for tex in (claim.formula, claim.right_formula):
        assert not tex or "<path" in as_svg(tex)


def test_the_same_seeds_give_the_same_numbers(outcome):
    assert run_claim(NAME, QUICK).cases == outcome.cases


def test_a_cached_result_is_not_measured_again(tmp_path, monkeypatch):
    trial = replace(QUICK, folder=tmp_path)
    (first,) = run_all([NAME], trial, jobs=1)
    monkeypatch.setattr(dot_product_variance, "measure", None)
    (second,) = run_all([NAME], trial, jobs=1)
    assert first == second
    with pytest.raises(TypeError):
        list(run_all([NAME], trial, jobs=1, fresh=True))


def test_a_cached_result_is_not_used_for_other_inputs(tmp_path):
    trial = replace(QUICK, folder=tmp_path)
    list(run_all([NAME], trial, jobs=1))
    assert read_cached(NAME, trial) is not None
    assert read_cached(NAME, replace(trial, quick=False)) is None
    assert read_cached(NAME, replace(trial, weights="x.safetensors")) is None
    path = tmp_path / "quick" / f"{NAME}.json"
    path.write_text(path.read_text()[:100])
    assert read_cached(NAME, trial) is None


@pytest.mark.slow
def test_two_processes_give_the_same_results(tmp_path, outcome):
    names = [NAME, "temperature"]
    found = {each.name: each for each in run_all(names, replace(QUICK, folder=tmp_path), jobs=2)}
    assert set(found) == set(names)
    assert found[NAME].cases == outcome.cases


DAMAGED_RESULTS = [
    "",
    "1.0",
    "[]",
    "null",
    "{}",
    '{"key": 1, "name": 2}',
    "[" * 100_000,
    lambda found: found.update(names=1),
    lambda found: found.update(cases=3),
    lambda found: found.update(cases=[[]]),
    lambda found: found["cases"][0].update(document=[1]),
    lambda found: found["cases"][0].update(measured={"value": "x"}),
    lambda found: found.pop("seconds"),
]


@pytest.mark.parametrize("change", DAMAGED_RESULTS, ids=range(len(DAMAGED_RESULTS)))
def test_damaged_results_are_one_line_errors(tmp_path, outcome, capsys, change):
    (tmp_path / "quick").mkdir()
    path = tmp_path / "quick" / f"{NAME}.json"
    content = {"key": "x", **outcome.to_json()}
    if callable(change):
        change(content)
    path.write_text(json.dumps(content) if callable(change) else change)
    assert main(["lab", "--folder", str(tmp_path)]) == 2
    assert re.fullmatch(f"vitreous: .*{NAME}.json is not a result of the laboratory, .*\n", capsys.readouterr().err)
    assert read_cached(NAME, replace(QUICK, folder=tmp_path)) is None


def test_the_page_is_self_contained(tmp_path, outcome):
    write_page(tmp_path / "lab.html", [outcome])
    page = (tmp_path / "lab.html").read_text()
    assert find_experiment(NAME).claim.title in page
    assert "holds with care" in page
    assert "the text predicts 4 ± 0.2, measured 16" in page
    assert page.count('class="formula"') == 2
    assert not re.search(r'(src|href)="(?!#|data:)', page)


def test_markdown_pages_have_figures_and_results(tmp_path, outcome):
    write_pages(tmp_path, [outcome])
    assert f"formulas.md#{NAME}" in (tmp_path / "README.md").read_text()
    text = (tmp_path / "formulas.md").read_text()
    assert f'<a id="{NAME}"></a>' in text
    assert f"](figures/{NAME}.png)" in text
    assert (tmp_path / "figures" / f"{NAME}.png").stat().st_size < 40_000
    assert read_results(tmp_path) == [outcome]


def test_the_command_line_runs_and_lists(tmp_path, capsys):
    assert main(["lab", "run", "5", "--quick", "--output", str(tmp_path)]) == 0
    assert "holds with care" in capsys.readouterr().out
    assert (tmp_path / "lab.html").exists()
    assert json.loads((tmp_path / "quick" / f"{NAME}.json").read_text())["verdict"] == Verdict.CARE
    assert main(["lab", "--folder", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "softmax_saturation" in shown
    assert "holds with care" in shown


def test_a_broken_experiment_sets_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(dot_product_variance, "right", lambda sigma_q, sigma_k: 7.0)
    with pytest.raises(SystemExit) as stop:
        main(["lab", "run", "5", "--quick", "--output", str(tmp_path)])
    assert stop.value.code == 1


def test_an_unknown_claim_suggests_the_nearest(capsys):
    assert main(["lab", "run", "dot_product_variense"]) == 2
    assert f"did you mean {NAME!r}" in capsys.readouterr().err
