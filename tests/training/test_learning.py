"""That agents learn what the paper says they learn. Slow: minutes each on two cores."""

from __future__ import annotations

import pytest

from etd.lab.runs import session


@pytest.mark.slow
def test_etd_solves_doorkey_8x8_within_150_000_steps(tmp_path):
    run = session.train("MiniGrid-DoorKey-8x8-v0", "etd", steps=150_000, out=tmp_path / "run", until=0.9, quiet=True)
    assert run.metrics()["return"][-1] >= 0.9
