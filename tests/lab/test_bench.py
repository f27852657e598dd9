"""What `etd bench` measures adds up."""

from __future__ import annotations

import pytest

from etd.lab import bench


@pytest.mark.slow
def test_a_bonus_costs_more_than_none() -> None:
    result = bench.bonuses("MiniGrid-DoorKey-5x5-v0", ["count", "icm"], repeats=2)
    assert list(result["relative"]) == ["none", "count", "icm"]
    assert result["relative"]["none"] == 1
    assert result["relative"]["icm"] > 1.2
    assert result["iteration_s"]["none"] > 0
