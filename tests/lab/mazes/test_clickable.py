"""The page, in a real browser: a click changes every map to the distances that NumPy says."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from tests.browser import CHROMIUM

from etd.envs.maze import Maze
from etd.lab.mazes import clickable

PROBE = """
<script>
const said = { errors: [] }, canvases = [...document.querySelectorAll("canvas")];
window.onerror = words => said.errors.push(words);
const sums = () => canvases.map(canvas => canvas.dataset.sum);
const red = (canvas, row, column) => {
  const dot = canvas.getContext("2d").getImageData(column * 14 + 7, row * 14 + 7, 1, 1).data;
  return dot[0] > 200 && dot[1] < 60;
};
function click(canvas, row, column) {
  const box = canvas.getBoundingClientRect();
  const at = { clientX: box.left + (column + 0.5) / 5 * box.width, clientY: box.top + (row + 0.5) / 4 * box.height };
  canvas.dispatchEvent(new MouseEvent("click", { bubbles: true, ...at }));
}
said.first = sums();
click(canvases[1], 2, 3);
said.clicked = sums();
said.red = canvases.map(canvas => red(canvas, 2, 3));
click(canvases[0], 0, 0);
said.wall = sums();
document.getElementById("direction").click();
said.turned = sums();
canvases[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
said.moved = sums();
said.words = document.getElementById("here").textContent;
said.wide = canvases[0].getBoundingClientRect().width;
document.body.innerHTML = "<pre id=said></pre>";
document.getElementById("said").textContent = JSON.stringify(said);
</script>
"""


@pytest.fixture(scope="module")
def maze() -> Maze:
    return Maze("#####\n#...#\n#...#\n#####")


@pytest.fixture(scope="module")
def distances() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    far = rng.random((6, 6)) * 40
    far[4, 1] = np.inf
    return {"ETD </script>": rng.random((6, 6)), "shortest path": far}


def test_numbers_survive_packing(distances) -> None:
    for values in distances.values():
        packed = clickable.pack(values)
        raw = np.frombuffer(base64.b64decode(packed["values"]), "<u2").reshape(6, 6)
        back = np.where(raw == clickable.FAR, np.inf, packed["low"] + raw * packed["unit"])
        np.testing.assert_allclose(back, values, atol=1e-3)


def test_page_fetches_nothing(maze, distances, tmp_path) -> None:
    text = clickable.write(tmp_path / "page.html", "Distances", clickable.body(maze, distances, 0)).read_text()
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?:""", text)
    assert text.count("</script>") == 2


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_clicks_in_a_browser(maze, distances, tmp_path: Path) -> None:
    page = clickable.write(tmp_path / "page.html", "Distances", clickable.body(maze, distances, 0) + PROBE)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [CHROMIUM, *options, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    said = json.loads(unescape(re.search(r'<pre id="said">(.*?)</pre>', dom, re.DOTALL)[1]))

    def expected(cell: int, to: bool) -> list[float]:
        rows = [values[:, cell] if to else values[cell] for values in distances.values()]
        return [row[np.isfinite(row)].sum() for row in rows]

    assert said["errors"] == []
    assert said["wide"] > 100
    clicked, left = maze.cells.index((2, 3)), maze.cells.index((2, 2))
    for name, sums in (
        ("first", expected(0, False)),
        ("clicked", expected(clicked, False)),
        ("wall", expected(clicked, False)),  # a click on a wall changes nothing
        ("turned", expected(clicked, True)),
        ("moved", expected(left, True)),
    ):
        np.testing.assert_allclose(list(map(float, said[name])), sums, atol=0.01, err_msg=name)
    assert said["first"] != said["clicked"] != said["turned"]
    assert said["red"] == [True, True]
    assert "row 2, column 2" in said["words"]
