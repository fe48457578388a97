"""Every experiment notices when what it measures, or what it predicts, is broken."""

import importlib
import pkgutil

import pytest

from tests.lab import mutations
from tests.lab.mutations.base import Mutation, place
from tests.lab.selection import OFTEN
from vitreous.lab.outcome import Verdict
from vitreous.lab.run import run
from vitreous.lab.table import NAMES
from vitreous.lab.trial import Trial

FILES = [name for _, name, _ in pkgutil.iter_modules(mutations.__path__) if name != "base"]
ALL: list[Mutation] = [
    mutation for name in FILES for mutation in importlib.import_module(f"tests.lab.mutations.{name}").MUTATIONS
]


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, id=f"{each.claim}: {each.what}", marks=() if each.claim in OFTEN else pytest.mark.slow)
        for each in ALL
    ],
)
def test_a_mistake_turns_the_experiment_red(mutation, monkeypatch, tmp_path):
    holder, name = place(mutation.home)
    monkeypatch.setattr(holder, name, mutation.wrong(getattr(holder, name)))
    assert run(mutation.claim, Trial(quick=True, folder=tmp_path)).verdict is Verdict.BROKEN


def test_every_claim_has_a_mistake_that_turns_it_red():
    assert {mutation.claim for mutation in ALL} == set(NAMES)
