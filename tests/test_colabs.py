"""Notebooks: no stored output, no definitions, and they run from the first cell to the last."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_stores_no_output_and_defines_nothing(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert not [line for line in cell["source"] if line.lstrip().startswith(("def ", "class ", "lambda", "@"))]


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # of the notebook machinery, which is not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("FOCALGEO_VARIANT", "quick")
    monkeypatch.setenv("FOCALGEO_WORKDIR", str(tmp_path / "run"))
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)
    assert (tmp_path / "run" / "report.html").exists()
