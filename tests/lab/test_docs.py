"""The documentation pages match the recorded results of full runs."""

from pathlib import Path

from vitreous.lab.markdown import pages, read_results
from vitreous.lab.outcome import Verdict
from vitreous.lab.table import NAMES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "lab"
RESULTS = read_results(DOCS)


def test_every_claim_has_a_verdict_from_a_full_run():
    assert {outcome.name for outcome in RESULTS} == set(NAMES)
    for outcome in RESULTS:
        assert not outcome.quick
        assert outcome.verdict not in (Verdict.BROKEN, Verdict.MISSING), outcome.name
        assert outcome.made["commit"]
        assert (DOCS / "figures" / f"{outcome.name}.png").exists()


def test_the_pages_match_the_results():
    """Regenerate them with: python -m vitreous.lab.markdown docs/lab."""
    for name, text in pages(RESULTS).items():
        assert (DOCS / name).read_text() == text, name
