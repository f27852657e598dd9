"""What training shows while it runs, on terminals of several widths and in a pipe."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from tests.lab.conftest import small_experiment

from etd.core.terminal import Terminal
from etd.lab.runs import programs
from etd.lab.runs.progress import Progress

METRICS = {"return": 0.551, "success": 0.6, "bonus_scale": 0.0123, "model_accuracy": 0.81, "states": 12_345.0}
PARTS = ["return 0.55", "success 60%", "steps/s", "bonus scale 0.012", "model accuracy 81%", "states 12,345"]
EXPERIMENT = small_experiment(steps=64 * 1000)


def metrics(step: int) -> dict[str, np.ndarray]:
    return {"step": np.array([step, step]), **{name: np.array([value, value]) for name, value in METRICS.items()}}


def console(**options) -> Terminal:
    return Terminal(file=io.StringIO(), soft_wrap=True, **options)


def line(progress: Progress) -> str:
    """The bar as it is drawn now, on a terminal as wide as its own, which is busy with showing it."""
    other = console(force_terminal=True, width=progress.console.width, color_system=None)
    other.print(progress.bar.get_renderable())
    return other.file.getvalue().rstrip("\n")


@pytest.mark.parametrize(("width", "shown"), [(60, 2), (80, 3), (200, 6)])
def test_one_line_holds_what_matters_most(width: int, shown: int) -> None:
    with Progress(EXPERIMENT, console=console(force_terminal=True, width=width)) as progress:
        progress.compiling()
        assert "compiling" in line(progress)
        for step in range(64, 64 * 320, 64):
            progress.update(metrics(step))
        drawn = line(progress)
    assert "\n" not in drawn
    assert len(drawn) <= width
    bar, left = drawn.split("32%")
    assert re.fullmatch(r"━+[╸╺]? +", bar)  # without colours, what is left of it is blank
    assert len(bar) >= 12
    assert re.match(r" (\d+:\d\d:\d\d|-:--:--) ", left)
    assert [part for part in PARTS if part in drawn] == PARTS[:shown]
    assert "…" not in drawn


@pytest.mark.parametrize(
    ("known", "width", "words"),
    [
        (None, 80, "compiling (half a minute, once per experiment)"),
        (None, 60, "compiling"),
        (29.4, 60, "compiling, 29 s last time"),
    ],
)
def test_compilation_is_announced(known: float | None, width: int, words: str) -> None:
    told: list[float] = []
    shown = console(force_terminal=True, width=width)
    with Progress(EXPERIMENT, last_time=known, keep_time=told.append, console=shown) as progress:
        progress.compiling()
        assert line(progress).rstrip().endswith(f" {words}")
        assert not told
        for step in (64, 128):
            progress.update(metrics(step))
    assert len(told) == 1


def test_in_a_pipe_there_are_whole_lines() -> None:
    pipe = console(width=80)
    with Progress(EXPERIMENT, last_time=29.4, console=pipe) as progress:
        progress.compiling()
        progress.update(metrics(64))
        progress.update(metrics(64 * 1000))
    first, second, third, last = pipe.file.getvalue().splitlines()
    assert first == "compiling MiniGrid-Empty-5x5-v0, 2 seeds, 64,000 steps, 29 s last time ..."
    assert second == "compiled, and one iteration done, in 0 s"
    assert third.split() == ["64", "steps", *" ".join(PARTS[:2] + PARTS[3:]).split()]
    assert last.startswith("     64,000 steps  return 0.55  success 60%  ")
    assert last.endswith("steps/s  bonus scale 0.012  model accuracy 81%  states 12,345")


def test_the_time_to_compile_is_remembered_by_program(tmp_path) -> None:
    """Steps and the first seed make no other program; anything else does."""
    assert programs.last_time(None, EXPERIMENT) is None
    assert programs.last_time(tmp_path, EXPERIMENT) is None
    programs.keep_time(None, EXPERIMENT, 3.0)
    programs.keep_time(tmp_path, EXPERIMENT, 29.44)
    assert programs.last_time(tmp_path, small_experiment(steps=64)) == 29.4
    assert programs.last_time(tmp_path, small_experiment(seeds=3)) is None
    (file,) = tmp_path.iterdir()
    for content in ("", "long", "nan", "-1", "1" * 200):
        file.write_text(content)
        assert programs.last_time(tmp_path, EXPERIMENT) is None
