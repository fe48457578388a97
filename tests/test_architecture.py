"""The shape of the project: who may import whom, how light an import is, how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous

PACKAGE = Path(vitreous.__file__).parent

#: What each part may import of ours, beside itself; those of ``OPEN_TO_ALL`` are free for all.
EVERYTHING = {
    "runs",
    "layers",
    "models",
    "compress",
    "weights",
    "data",
    "cost",
    "anatomy",
    "catalog",
    "plan",
    "explain",
    "draw",
    "pages",
    "deploy",
    "tasks",
    "train",
    "recipes",
    "lab",
    "cli",
    "__version__",
}
MAY_IMPORT = {
    "layers": set(),
    "data": set(),
    "models": {"layers"},
    "compress": {"models", "layers"},
    "weights": {"models", "layers", "compress"},
    "cost": {"models", "layers"},
    "anatomy": {"cost", "models", "layers"},
    "catalog": {"cost", "models", "weights"},
    "tasks": {"models", "layers", "weights"},
    "train": {"models", "tasks", "data", "weights"},
    "explain": {"layers", "models", "weights", "data", "tasks"},
    "draw": {"explain", "models", "layers", "data", "tasks"},
    "pages": {"draw", "explain", "models", "data", "tasks", "weights"},
    "plan": {"cost", "models"},
    "deploy": {"models", "layers", "weights", "data", "tasks", "train"},
    "runs": EVERYTHING - {"cli", "lab"},
    "recipes": EVERYTHING - {"cli", "lab"},
    "lab": EVERYTHING,
    "cli": EVERYTHING,
    "__main__": {"cli"},
}
OPEN_TO_ALL = {"spec", "samples", "options", "files", "machine", "memory"}


def imports_of_ours(path: Path) -> set[str]:
    """The parts of vitreous that a file imports, wherever in the file it does."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide what a file depends on"
            names = (
                [node.module or ""] if node.module != "vitreous" else [f"vitreous.{alias.name}" for alias in node.names]
            )
        parts |= {name.split(".")[1] for name in names if name.startswith("vitreous.")}
    return parts


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_import_rules(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    if part in OPEN_TO_ALL:
        assert imports_of_ours(path) <= OPEN_TO_ALL, f"{part} is open to all, so it may import nothing else of ours"
        return
    assert part in MAY_IMPORT, (
        f"{part} is new: say in MAY_IMPORT, and in docs/concepts/architecture.md, what it may import"
    )
    forbidden = imports_of_ours(path) - MAY_IMPORT[part] - OPEN_TO_ALL - {part}
    assert not forbidden, f"{part} may not import {', '.join(forbidden)}"


def test_import_is_light():
    """A budget: neither torch nor numpy, and under 100 ms beyond what Python itself needs."""
    code = (
        "import sys, time; start = time.perf_counter(); import vitreous; took = time.perf_counter() - start; "
        "heavy = [n for n in ('torch', 'numpy', 'PIL', 'torchvision') if n in sys.modules]; print(took, *heavy)"
    )
    results = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(3)]
    assert all(len(result) == 1 for result in results), f"heavy modules imported: {results[0][1:]}"
    assert min(float(result[0]) for result in results) < 0.1


def test_evidence_is_computed_without_drawing():
    """Neither matplotlib nor anything that draws is loaded before somebody asks to see something."""
    code = (
        "import sys; from PIL import Image; import vitreous as vt; "
        "model = vt.create_model('vit_tiny_16', depth=1, dim=48, image_size=32, num_classes=3); "
        "explanation = vt.explain(model, Image.new('RGB', (32, 32)), quick=True); "
        "loaded = lambda: [n for n in ('matplotlib', 'vitreous.draw', 'vitreous.pages') if n in sys.modules]; "
        "print('before', *loaded()); explanation._repr_html_(); print('after', *loaded())"
    )
    lines = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert lines == ["before", "after matplotlib vitreous.draw"]


def test_every_public_name_is_there():
    for name in vitreous.__all__:
        assert getattr(vitreous, name) is not None
    assert set(vitreous.__all__) <= set(dir(vitreous))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vitreous.nothing  # noqa: B018


def test_a_function_is_not_hidden_by_its_module():
    code = (
        "import vitreous.cost, vitreous as vt; from vitreous.cost import Cost; print(callable(vt.cost), Cost.__name__)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["True", "Cost"]


def test_lazy_names_are_the_typed_ones():
    """What the type checker sees is what __getattr__ finds."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert typed == vitreous._HOME


def test_files_stay_one_idea():
    long = {path.name: n for path in PACKAGE.rglob("*.py") if (n := len(path.read_text().splitlines())) > 400}
    assert not long
