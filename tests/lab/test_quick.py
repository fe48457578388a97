"""Every experiment reaches a verdict in quick mode and draws its figure."""

import pytest

from tests.lab.selection import OFTEN
from tests.shared import DEIT_TINY, need_shared, photos
from vitreous.lab.outcome import Verdict
from vitreous.lab.run import run_claim
from vitreous.lab.table import NAMES, find_experiment
from vitreous.lab.trial import Trial
from vitreous.lab.words import deciding_evidence

ON_REAL_WEIGHTS = (
    "quantization", "attention_distance", "rollout", "low_pass", "layers_near_to_far", "heads_specialize",
    "attention_spectrum", "attention_rank", "attention_eigenvalues",
)  # fmt: skip
ONLY_REAL_WEIGHTS = {"layers_near_to_far", "heads_specialize"}  # have no verdict without them


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, worker_id):
    """Folder for small trained models, shared by all pytest workers."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "lab"


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory):
    """Real photos in class folders."""
    need_shared()
    folder = tmp_path_factory.mktemp("photos")
    for index, (image, label) in enumerate(zip(*photos(), strict=True)):
        if index < 120:
            (folder / f"{label:04d}").mkdir(exist_ok=True)
            image.save(folder / f"{label:04d}" / f"{index}.png")
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in NAMES]
)
def test_an_experiment_reaches_a_verdict(name, shared_folder):
    outcome = run_claim(name, Trial(quick=True, folder=shared_folder))
    assert (outcome.verdict is Verdict.MISSING) == (name in ONLY_REAL_WEIGHTS), outcome.left_out
    assert outcome.verdict is not Verdict.BROKEN, deciding_evidence(outcome)
    if outcome.cases:
        assert find_experiment(name).draw(outcome).get_axes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_REAL_WEIGHTS)
def test_an_experiment_on_real_weights_reaches_a_verdict(name, shared_folder, photo_folder):
    outcome = run_claim(name, Trial(quick=True, weights=str(DEIT_TINY), photos=str(photo_folder), folder=shared_folder))
    assert outcome.verdict not in (Verdict.BROKEN, Verdict.MISSING), deciding_evidence(outcome)
    assert any("DeiT-Tiny" in case.label or case.group == "DeiT-Tiny" for case in outcome.cases)
    assert find_experiment(name).draw(outcome).get_axes()
