"""Every experiment detects mistakes in the code it measures or in its predictions."""

import importlib
import pkgutil

import pytest

from tests.lab import mutations
from tests.lab.mutations.base import Mutation, resolve
from tests.lab.selection import OFTEN
from vitreous.lab.outcome import Verdict
from vitreous.lab.run import run_claim
from vitreous.lab.table import NAMES
from vitreous.lab.trial import Trial

FILES = [name for _, name, _ in pkgutil.iter_modules(mutations.__path__) if name != "base"]
ALL: list[Mutation] = [
    mutation for name in FILES for mutation in importlib.import_module(f"tests.lab.mutations.{name}").MUTATIONS
]


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(
            each, id=f"{each.claim}: {each.description}", marks=() if each.claim in OFTEN else pytest.mark.slow
        )
        for each in ALL
    ],
)
def test_a_mutation_breaks_the_experiment(mutation, monkeypatch, tmp_path):
    holder, name = resolve(mutation.target)
    monkeypatch.setattr(holder, name, mutation.mutate(getattr(holder, name)))
    assert run_claim(mutation.claim, Trial(quick=True, folder=tmp_path)).verdict is Verdict.BROKEN


def test_every_claim_has_a_mutation():
    assert {mutation.claim for mutation in ALL} == set(NAMES)
