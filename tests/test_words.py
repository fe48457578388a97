"""The project is written in the field's words: a list of others, which would keep a reader out, is searched for."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("*.py", "*.md", "*.c", "*.h", "*.toml", "Makefile")

#: A word of no place here, and the one to use.
WORDS = {
    "pictures?": "image",
    "portraits?": "explanation",
    "sittings?": "explanation",
    "optimi[s]ers?": "optimizer",
    "normali[s](e|es|ed|ing|ation)": "normalize",
    "colou[r](s|ed|ing)?": "color",
    "initiali[s](e|es|ed|ing|ation)": "initialize",
    "quanti[s](e|es|ed|ing|ation)": "quantize",
    "labell(ed|ing)": "labeled",
    "modell(ed|ing)": "modeled",
    "cent[r]es?": "center",
    "neighbou[r](s|ing)?": "neighbor",
    "grey(scale)?": "gray",
    "behaviou[r]s?": "behavior",
    "learn[t]": "learned",
    "(this|the) doctor": "preflight",
    "worn_by": "applied_to",
    "seams?": "attention op",
}
#: Lines that quote others, name what was renamed, or spell a library's own name.
QUOTES = re.compile(
    r"[“”]|_RENAMED|[Dd]eprecated|optimiser\"|TrainConfig\(optimiser|--train\.optimiser|vt\.portrait|CONV_SEAM|tests/test_words"
)


def texts():
    tracked = subprocess.run(["git", "ls-files", "--", *TEXTS], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in tracked.stdout.splitlines() if name not in ("CHANGELOG.md", "tests/test_words.py")]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the git checkout that lists the project's files")
@pytest.mark.parametrize("word", WORDS)
def test_word(word):
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts()
        if path.exists()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and not QUOTES.search(line)
    ]
    assert not found, f"write {WORDS[word]!r}:\n" + "\n".join(found[:20])


def test_the_search_finds():
    assert re.search(rf"\b{next(iter(WORDS))}\b", "two pictures of a cat")
    assert not QUOTES.search("two pictures of a cat")
