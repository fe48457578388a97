"""The twelve review questions are complete, and every answer links to existing experiments."""

import re
from pathlib import Path

import pytest

from vitreous.lab.table import PARTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lab" / "questions.md").read_text(encoding="utf-8")
ANSWERS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def links(text):
    return re.findall(r"\[(\w+)\]\((\w+)\.md#(\w+)\)", text)


def test_there_are_twelve_in_order():
    assert [int(answer.split()[0]) for answer in ANSWERS] == list(range(1, 13))


@pytest.mark.parametrize("answer", ANSWERS, ids=range(1, 13))
def test_answers_link_to_experiments(answer):
    assert links(answer)
    for name, page, anchor in links(answer):
        assert name == anchor
        assert name in PARTS[page.capitalize()]


def test_the_contents_link_to_the_questions():
    titles = [answer.splitlines()[0].lower() for answer in ANSWERS]
    anchors = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) == anchors
