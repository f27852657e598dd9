"""Sweeps over sizes: every size is timed, slow bands are found, and the plots show them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.corridor import Corridor
from tests.lab.bench.test_bench import TINY

from etd.core.errors import UserError
from etd.envs import Task
from etd.lab.bench import seeds, speed, sweep
from etd.lab.bench.sweep import Speed
from etd.training import memory


def test_a_slow_band_is_where_more_at_once_are_slower() -> None:
    rates = {1: 100, 2: 200, 4: 170, 8: 150, 16: 720, 32: 660, 64: 500}
    found = [Speed("etd", size, rate) for size, rate in rates.items()]
    assert sweep.slow_bands(found) == [(2, 8), (32, 64)]
    assert sweep.slow_bands(found[:2]) == sweep.slow_bands([]) == []
    assert sweep.line(found[2], found[1]).endswith("15 % slower than at 2")
    assert "slower" not in sweep.line(found[5], found[4])
    assert "660 steps/s" in sweep.line(found[5], found[4])
    assert "3 MiB" in sweep.line(found[0]._replace(memory_bytes=3 << 20), None)


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4), (1, *(1 << power for power in range(4, 17)))])
def test_sweeps_of_any_length_are_drawn(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    found = [Speed(what, size, 1e3 * size**0.4) for what in ("etd", "farama") for size in sizes]
    picture = sweep.draw(found, "environments", "Spiral", tmp_path / "sweep.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


DEVICE = replace(TINY, env=Task.of(Corridor()))


@pytest.mark.slow
def test_more_and_more_seeds_are_timed_until_memory_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enough = memory.taken(replace(DEVICE, seeds=3))[0]
    monkeypatch.setattr(memory, "available", lambda: int(enough))
    result = seeds.run(DEVICE, 8, 1, tmp_path / "seeds.png")
    assert [one["batch"] for one in result["speeds"]] == [1, 2]
    assert all(one["steps_per_s"] > 0 and one["memory_bytes"] < enough for one in result["speeds"])
    assert (tmp_path / "seeds.png").is_file()
    said = capsys.readouterr().out
    rows = ("1 at once", "2 at once", "4 seeds and more are left out: This training needs")
    assert sorted(rows, key=said.index) == list(rows)
    assert "8 seeds" not in said
    monkeypatch.setattr(memory, "available", lambda: 1)
    with pytest.raises(UserError, match=r"needs .* of memory or more"):
        seeds.run(DEVICE, 8, 1, tmp_path / "none.png")


def test_environments_are_timed_at_every_size_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Task, "make", lambda _: Corridor())
    monkeypatch.setattr(speed, "BATCHES", (2, 4, 1 << 40))
    monkeypatch.setattr(speed, "ROLLOUT", 8)
    result = speed.run("MiniGrid-DoorKey-8x8-v0", tmp_path / "env.png", seconds=0.0)
    assert [(one["what"], one["batch"]) for one in result["speeds"]] == [
        (what, size) for size in (2, 4) for what in ("etd", "etd, starts excluded")
    ]
    # At least the observations, 6 float32 numbers each, of 8 steps.
    assert all(one["memory_bytes"] > one["batch"] * 8 * 6 * 4 for one in result["speeds"])
    assert (tmp_path / "env.png").is_file()
    assert capsys.readouterr().out.count(" at once") == 4
