"""Which devices a worker has. JAX counts its devices once, so a process of its own sees eight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from tests.lab.conftest import small_experiment

from etd.core.errors import UserError
from etd.lab.compare import devices
from etd.lab.compare.execute import Work, _Processes
from etd.lab.compare.plan import Entry, make, table
from etd.lab.runs import session
from etd.lab.runs.store import _surroundings


def gpus(numbers: list[int]) -> list[SimpleNamespace]:
    return [SimpleNamespace(platform="gpu", local_hardware_id=number) for number in numbers]


@pytest.mark.parametrize("workers", range(1, 20))
def test_no_device_is_left_over_and_none_has_two_workers_without_need(workers: int) -> None:
    shares = [devices.share(worker, workers, 8) for worker in range(workers)]
    used = [device for share in shares for device in share]
    assert all(shares)
    assert set(used) == set(range(8)) if workers >= 8 else sorted(used) == list(range(8))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    most = max(used.count(device) for device in range(8))
    assert most == -(-workers // 8)


@pytest.mark.parametrize(
    ("chosen", "given", "visible"),
    [
        ([3], {}, "3"),
        ([1, 5], {"CUDA_VISIBLE_DEVICES": ""}, "1,5"),
        ([0, 1], {"CUDA_VISIBLE_DEVICES": "6, GPU-ab12,-1"}, "6,GPU-ab12"),
    ],
)
def test_a_gpu_is_named_as_the_user_has_named_it(chosen: list[int], given: dict[str, str], visible: str) -> None:
    assert devices.visible(gpus(chosen), given) == {"CUDA_VISIBLE_DEVICES": visible}


class Probe(Work):
    """Work that a worker fails at while it unpacks it, with what it sees."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return look, ()


def look() -> None:
    raise UserError(json.dumps([jax.local_device_count(), os.environ["XLA_FLAGS"], sorted(os.sched_getaffinity(0))]))


def check_all(folder: Path) -> None:
    """In a process with eight devices."""
    flags, every = (
        "--xla_cpu_enable_fast_math=false  --xla_force_host_platform_device_count",
        sorted(os.sched_getaffinity(0)),
    )
    for workers, counts in ((7, (2, 1)), (2, (4, 4))):
        runner, handles, seen = _Processes(workers, reuse=False), {}, {}
        for number in range(2):
            handles[runner.submit(Probe("", folder / str(number), small_experiment(), None, False, True, ()))] = number
        while len(seen) < 2:
            seen |= {handles[handle]: json.loads(ending.error) for handle, ending in runner.ended()}
        for number, count in enumerate(counts):
            assert seen[number] == [count, f"{flags}={count}", devices.cores(number, workers) or every]
        assert sorted(runner.free) == list(range(workers))  # the next worker gets the devices of one that has ended

    assert devices.sentence(1) == ""
    assert devices.sentence(2) == "2 workers on 8 x cpu: each has 4 devices of its own."
    assert devices.sentence(7) == "7 workers on 8 x cpu: each has 1 or 2 devices of its own."
    assert devices.sentence(8) == "8 workers on 8 x cpu: each has 1 device of its own."
    assert devices.sentence(16) == "16 workers on 8 x cpu: each has 1 device, which others use as well."

    assert session._spread(5) == "5 seeds on 5 of 8 devices."
    assert session._spread(16) == "16 seeds on 8 of 8 devices."
    assert session._spread(11) == "11 seeds on 1 of 8 devices. 8 seeds would use all of them."
    assert _surroundings(5)["device"]["count"] == "5"

    plan = make([Entry(str(k), "etd", small_experiment(steps=64 * 10**5)) for k in range(8)], folder)
    alone, apart = (
        int(list(table(plan, workers).columns[-1].cells)[-1].split()[0].replace(",", "")) for workers in (1, 8)
    )
    assert alone == pytest.approx(8 * apart, rel=0.02)


def test_workers_share_eight_devices(tmp_path: Path) -> None:
    here = [str(Path(__file__).parents[3]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    settings = {
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(here),
    }
    code = "import sys, pathlib, test_shares; test_shares.check_all(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_one_device_is_not_worth_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert devices.environment(3, 4) == {}
    assert devices.sentence(4) == ""
    assert session._spread(5) == ""
    assert "count" not in _surroundings(5)["device"]


def test_where_the_cpu_trains_each_worker_has_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3, 5, 7, 8})
    assert [devices.cores(worker, 2) for worker in range(2)] == [[2, 5, 8], [3, 7]]
    assert devices.cores(6, 7) == []
    assert devices.sentence(1) == ""
    assert devices.sentence(2) == "2 workers on 5 cores: each has 2 or 3 cores of its own."
    assert devices.sentence(7) == "7 workers share 5 cores."
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert devices.cores(0, 2) == []
