"""Every experiment notices when what it measures, or what it predicts, is broken."""

import importlib
import pkgutil

import pytest

from tests.lab import mutations
from tests.lab.mutations.base import Mutation, place
from vitreous.lab.outcome import Verdict
from vitreous.lab.run import run
from vitreous.lab.trial import Trial

FILES = [name for _, name, _ in pkgutil.iter_modules(mutations.__path__) if name != "base"]
ALL: list[Mutation] = [
    mutation for name in FILES for mutation in importlib.import_module(f"tests.lab.mutations.{name}").MUTATIONS
]


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: f"{mutation.claim}: {mutation.what}")
def test_a_mistake_turns_the_experiment_red(mutation, monkeypatch, tmp_path):
    holder, name = place(mutation.home)
    monkeypatch.setattr(holder, name, mutation.wrong(getattr(holder, name)))
    assert run(mutation.claim, Trial(quick=True, folder=tmp_path)).verdict is Verdict.BROKEN
