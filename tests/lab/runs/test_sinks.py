"""Metrics in TensorBoard's event files and in a W&B run, by the real packages, read back from what they wrote."""

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from etd.lab.runs.sinks import open_sinks
from etd.lab.runs.store import Run
from etd.training.experiment import Experiment

ROWS = [[{"seed": 3.0 + s, "step": 64.0 * i, "return": i + s / 4} for s in range(2)] for i in range(1, 5)]
"""Four iterations of two seeds."""


def log_twice(folder: Path, sink: str) -> None:
    """Two iterations, and two more as after a resumption."""
    run = Run.create(folder, Experiment(seed=3, seeds=2), overwrite=True)
    for part in (ROWS[:2], ROWS[2:]):
        with open_sinks((sink,), run) as sinks:
            for rows in part:
                run.log(rows)
                sinks[0].log(rows)


def test_tensorboard_has_a_curve_per_seed(tmp_path):
    log_twice(tmp_path / "run", "tensorboard")
    from tensorboardX.proto.event_pb2 import Event

    for seed in range(2):
        curves = defaultdict(list)
        for file in sorted((tmp_path / "run" / "tensorboard" / f"seed{3 + seed}").iterdir()):
            content = file.read_bytes()
            while content:  # a record: its length, a checksum of that, the event, a checksum
                (length,) = struct.unpack("<Q", content[:8])
                event = Event.FromString(content[12 : 12 + length])
                content = content[16 + length :]
                for value in event.summary.value:
                    curves[value.tag].append((event.step, value.simple_value))
        assert curves == {"return": [(64 * i, i + seed / 4) for i in range(1, 5)]}


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, in LevelDB's format: blocks of 32 KiB after a header, records cut to fit them."""
    at, whole = 7, b""
    while at < len(content):
        if 32768 - at % 32768 < 7:  # no room for another record's head
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield whole
            whole = b""


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log_twice(tmp_path / "run", "wandb")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1
    logged = []
    for file in files:
        for content in wandb_records(file.read_bytes()):
            record = Record.FromString(content)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
                logged.append((int(items["_step"]), float(items["seed3/return"]), float(items["seed4/return"])))
    assert logged == [(64 * i, i, i + 0.25) for i in range(1, 5)]
    log_twice(tmp_path / "run", "wandb")  # overwritten: another run
    assert len({file.name for file in (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")}) == 2
