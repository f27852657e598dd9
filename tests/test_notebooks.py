"""The notebooks run from top to bottom, and what is kept of them is what a run left.

Their outputs are kept, so that they can be read without running them. To make them anew, where `etd[sb3,test]` is
installed: `jupyter execute --inplace notebooks/*.ipynb`
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
LARGEST = 300_000
"""bytes of a notebook with its outputs"""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_its_outputs_are_those_of_one_whole_run(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert path.stat().st_size < LARGEST
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    assert "/tmp/" not in json.dumps(outputs)


@pytest.mark.slow
@each
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    clients, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("minigrid")
    if path.stem == "stable_baselines3":
        pytest.importorskip("stable_baselines3")
    book = formats.read(path, as_version=4)
    clients.NotebookClient(book, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    if path.stem == "train_and_look":
        solved = next(cell for cell in book.cells if "etd.evaluate(" in cell.source).outputs[0]["data"]["text/plain"]
        assert ast.literal_eval(solved)["success"] > 0.8
