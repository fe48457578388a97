"""The notebooks run from top to bottom, with random weights in place of the published ones."""

import json
import os
from pathlib import Path

import pytest

from tests.weights.hub import serve_deit_tiny

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_and_free_of_errors(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    assert path.stat().st_size < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, hub, tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    serve_deit_tiny(hub)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hub")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "docs" / "notebooks").mkdir(parents=True)
    (tmp_path / "docs" / "images").symlink_to(ROOT / "docs" / "images")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("epochs=8", "epochs=1")
    resources = {"metadata": {"path": str(tmp_path / "docs" / "notebooks")}}
    done = nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3", resources=resources).execute()
    assert all(cell.execution_count for cell in done.cells if cell.cell_type == "code")
