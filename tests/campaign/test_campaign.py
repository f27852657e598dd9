"""The power cut takes only what was not flushed; the campaign's trials are exact, and it sees when one is not."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from etd.lab.runs.store import Run
from tests.campaign import power, trial
from tests.campaign.__main__ import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import os
from pathlib import Path
from etd.core import files

files.make_folder(Path("deep/kept"))
files.write(Path("deep/kept/whole"), "0123456789")
with Path("deep/kept/rows").open("w") as stream:
    stream.write("first\\n")
    stream.flush()
    os.fsync(stream.fileno())
    files.flush_folder(Path("deep/kept"))
    stream.write("second\\n")
Path("deep/kept/loose").write_text("never flushed")
Path("deep/kept/whole").replace("deep/kept/renamed")
Path("deep/other").mkdir()
"""

KEEPER = """
from dataclasses import replace
from pathlib import Path
import numpy as np
from etd.lab.runs.store import Run
from etd.training.experiment import Experiment

for name in ("saved", "replaced"):
    run = Run.create(Path("runs") / name, Experiment(seed=1))
    run.log([{"iteration": 7, "seed": 1}])
    run.save({"weights": np.arange(100)}, 7)
Run.create(Path("runs/replaced"), Experiment(seed=2), overwrite=True)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(WRITER, tmp_path_factory.mktemp("written"))


def recorded(code: str, folder: Path) -> Path:
    """What a process that runs ``code`` has left: a place, and the record of what it flushed."""
    (folder / "place").mkdir()
    power.settle(folder / "place", folder / "disk")
    path = [Path(power.__file__).parent / "recorder", ROOT / "src", ROOT]
    env = {"CAMPAIGN_ROOT": str(folder / "place"), "CAMPAIGN_DISK": str(folder / "disk")}
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder / "place",
        env={**os.environ, **env, "PYTHONPATH": os.pathsep.join(map(str, path))},
        check=True,
    )
    return folder


def test_what_was_flushed_outlasts_a_power_cut_and_the_rest_may_not(written: Path, tmp_path: Path) -> None:
    seen: dict[str, set[bytes | None]] = {name: set() for name in ("whole", "renamed", "rows", "loose")}
    other = set()
    for seed in range(60):
        image = tmp_path / str(seed)
        power.cut(written / "place", written / "disk", image, random.Random(seed))
        for name, found in seen.items():
            file = image / "deep" / "kept" / name
            found.add(file.read_bytes() if file.exists() else None)
        other.add((image / "deep" / "other").exists())
    assert seen["whole"] == {b"0123456789", None}  # there under its old name, or not
    assert seen["renamed"] == {b"0123456789", None}
    assert all(left is not None and left.startswith(b"first\n") for left in seen["rows"])
    assert {b"first\n", b"first\nsecond\n"} < seen["rows"]
    assert any(left is not None and left.endswith(b"\0") for left in seen["rows"])
    assert {None, b"", b"never flushed"} < seen["loose"]
    assert other == {True, False}


def test_the_record_starts_with_what_is_there(written: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    shutil.copytree(written / "place", place)
    power.settle(place, tmp_path / "disk")
    power.cut(place, tmp_path / "disk", tmp_path / "image", random.Random(0))
    before, after = (
        {file.relative_to(root): file.read_bytes() for file in root.rglob("*") if file.is_file()}
        for root in (place, tmp_path / "image")
    )
    assert after == before


def test_a_run_that_was_saved_outlasts_a_power_cut(tmp_path: Path) -> None:
    """Its record, its rows and its checkpoint; and no checkpoint of the run it replaced comes back to it."""
    folder = recorded(KEEPER, tmp_path)
    for seed in range(40):
        image = tmp_path / str(seed)
        power.cut(folder / "place", folder / "disk", image, random.Random(seed))
        saved, new = Run.open(image / "runs" / "saved"), Run.open(image / "runs" / "replaced")
        assert saved.experiment.seed == 1
        assert list(saved.metrics()["iteration"]) == [7]
        with np.load(saved.checkpoints()[0]) as arrays:
            np.testing.assert_array_equal(arrays["weights"], np.arange(100))
        assert (new.experiment.seed, new.checkpoints(), new.metrics()) == (2, [], {})
        assert Run.open(new.aside).checkpoints()[0].name == "0000007.npz"


@pytest.mark.slow
def test_two_trials_are_exact_and_a_difference_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trials", "2", "--only", "device resume", "--folder", str(tmp_path)]
    assert main(words) == 0
    assert "2 of 2 exact" in capsys.readouterr().out
    one, two = tmp_path / "device-train-0" / "place" / "run", tmp_path / "other"
    shutil.copytree(one, two)
    assert trial.difference(two, one) == ""
    rows = (two / "metrics.csv").read_text().splitlines(keepends=True)
    (two / "metrics.csv").write_text("".join([*rows[:4], *rows[5:]]))
    assert "row" in trial.difference(two, one)
    shutil.copy(one / "metrics.csv", two)
    older, newest = sorted((two / "checkpoints").glob("*.npz"))
    older.replace(newest)
    assert "differs in the last checkpoint" in trial.difference(two, one)
