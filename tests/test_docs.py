"""The documentation is true: its examples and commands run, its links resolve, and every public name is in it."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous as vt
from tests.reader import blocks, elsewhere, run_commands, run_example  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
#: Blocks with these words take more than a few seconds.
EXPENSIVE = re.compile(r"vt\.(train|export|accelerate|explain)\(|vitreous (train|export|bench|evaluate|embed|explain)")


def cases(kind):
    """A parameter for every code block of every page; the expensive ones are slow."""
    for page, text in PAGES.items():
        found = blocks(kind, text)
        for index in range(len(found)):
            marks = [pytest.mark.slow] if any(map(EXPENSIVE.search, found[: index + 1])) else []
            yield pytest.param(page, index, id=f"{page}-{index}", marks=marks)


@pytest.fixture(scope="module")
def run_earlier(elsewhere, tmp_path_factory):  # noqa: F811
    """Run the blocks of a page up to one of them, each once, since later ones use the files of earlier ones.

    Every page has a folder of its own, in which its Python and its console blocks have one each.
    """
    done = set()

    def run(kind, page, index, run_block):
        folder = tmp_path_factory.getbasetemp() / "pages" / page / kind
        if not folder.exists():
            shutil.copytree(elsewhere, folder)
        for number, block in enumerate(blocks(kind, PAGES[page])[: index + 1]):
            if (kind, page, number) not in done:
                run_block(block, folder)
                done.add((kind, page, number))

    return run


@pytest.mark.parametrize(("page", "index"), cases("python"))
def test_examples_run(run_earlier, page, index, monkeypatch):
    run_earlier("python", page, index, lambda block, folder: run_example(block, page, folder, monkeypatch))


@pytest.mark.parametrize(("page", "index"), cases("console"))
def test_commands_run(run_earlier, page, index, capsys):
    run_earlier("console", page, index, lambda block, folder: run_commands(block, folder, capsys))


def anchors(page):
    """The anchors of a page: GitHub's slugs of its headings, HTML ids, and the objects that mkdocstrings documents."""
    text = FENCE.sub("", PAGES[page])
    found, counts = set(re.findall(r'<a id="([^"]+)"', text)) | set(re.findall(r"^::: (\S+)", text, re.MULTILINE)), {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-")
        found.add(slug if (number := counts.setdefault(slug, 0)) == 0 else f"{slug}-{number}")
        counts[slug] += 1
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", PAGES[page]))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (DOCS / page).parent / path if path else DOCS / page
        assert file.is_file(), target
        if anchor:
            assert anchor in anchors(file.resolve().relative_to(DOCS).as_posix()), target


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    """Paths such as `layers/mixers.py`, seen from the repository, the package or docs/."""
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|c|h|json|md))`", PAGES[page]):
        homes = (ROOT, ROOT / "vitreous", DOCS)
        assert name.endswith("/x.py") or any((home / name).exists() for home in homes), name


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    notebooks = [f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")]
    assert sorted(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)) == sorted([*PAGES, *notebooks])


def test_every_public_name_has_one_entry_in_the_reference():
    entries = [
        name
        for page in PAGES
        if page.startswith("reference/")
        for name in re.findall(r"^::: vitreous\.(\w+)$", PAGES[page], re.MULTILINE)
    ]
    assert sorted(entries) == sorted(set(vt.__all__) - {"__version__"})
    assert all(f"`{name}`" in PAGES["reference/index.md"] for name in entries)


def test_figures_have_their_record():
    for image in (DOCS / "images").glob("*.png"):
        assert image.with_suffix(".json").exists()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="needs the extra docs")
def test_the_site_builds_and_loads_nothing_from_another_host(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    external = r"[\"']?((?:https?:)?//[^\"'\s>]+)"
    for page in pages:
        assert re.findall(rf"<(?!a\b)\w+\b[^>]*?\s(?:src|href|srcset)={external}", page.read_text()) == [], page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert re.findall(rf"(?:url\(|@import)\s*{external}", sheet.read_text()) == [], sheet
