"""A run is a directory; only this module, and those it uses for one file each, read or write it.

    run.json            the resolved experiment, the versions and the device
    metrics.csv         one row per iteration and seed
    checkpoints/N.npz   the whole training state after N iterations, the newest few
    replaced/           the run that this one replaces, until it has a checkpoint

A run may be damaged, or come from somebody else. Whatever its files hold, opening it ends in a run or in a UserError:
nothing in them is executed, waited for, or believed about how much memory it takes.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from etd.core import files
from etd.core.errors import UserError
from etd.core.limits import is_whole
from etd.core.types import PyTree
from etd.core.version import __version__
from etd.lab.runs import notebook, table
from etd.lab.runs.record import EXPORT, read_experiment, read_record
from etd.lab.runs.table import Table
from etd.training import checkpoint, compiled
from etd.training.checkpoint import DamagedError, MismatchError
from etd.training.config import sources, to_dict, unavailable, unwritable
from etd.training.experiment import Experiment
from etd.training.migrate import FORMAT

FILE = "run.json"
KEPT = 2
"""How many checkpoints to keep; more than one, in case the newest is damaged."""
DAMAGED = "metrics-damaged.csv"
"""A copy of the metrics as they were, if a resumed run found lines in them that it could not read."""

_live: dict[Path, Experiment] = {}
"""Experiments of runs started by this process that cannot be restored from a file."""


class Run:
    """An existing run directory: what was trained (``experiment``), how it went (``metrics()``), and its checkpoints.

    >>> import etd
    >>> run = etd.train("MiniGrid-Empty-5x5-v0", "count", steps=64, num_envs=4, rollout_steps=16,
    ...                 fields={"ppo.minibatch": 32, "ppo.epochs": 1}, out="runs/example", quiet=True)
    >>> etd.Run.open("runs/example").experiment.bonus == run.experiment.bonus
    True
    """

    def __init__(
        self, path: Path, record: dict[str, Any], experiment: Experiment | None = None, exported: bool = False
    ):
        self.path = path
        self.record = record
        self.exported = exported
        """whether this is only an agent, which can be played but neither trained nor reported"""
        file = path / (EXPORT if exported else FILE)
        self.experiment: Experiment = experiment or _live.get(path.resolve()) or read_experiment(record, file)
        self.stopped = 0
        """the signal that ended the training that returned this object; 0 if none did"""

    def __repr__(self) -> str:
        return notebook.words(self)

    def _repr_html_(self) -> str:
        return notebook.html(self)

    @classmethod
    def create(cls, path: Path, experiment: Experiment, overwrite: bool = False) -> Run:
        """A fresh directory. An existing run is refused unless ``overwrite``; what a process leaves behind that was
        killed before it wrote run.json does not count as one."""
        record = {"format": FORMAT, "experiment": to_dict(experiment), "sources": sources(experiment)}
        if lost := unwritable(experiment):
            record["unwritable"] = lost
        run = cls(path, {**record, **_surroundings(experiment.seeds)}, experiment)
        old = [path / FILE, run.metrics_file, *run.checkpoints()]
        if any(file.exists() for file in old) and not overwrite:
            raise UserError(
                f"{path} already exists. Continue it with `etd resume {path}`, choose another --out, or pass "
                "--overwrite to replace it."
            )
        files.make_folder(path / "checkpoints")
        try:
            with files.told(path):
                run._refuse_links()
                run._sweep()
                run._set_aside(old)
            run._write_record()
        except BaseException:
            run.put_back()
            raise
        _live.pop(path.resolve(), None)
        if lost:
            _live[path.resolve()] = experiment
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run at ``path``, or the agent exported there; a UserError that says why there is none."""
        path = files.path_of(path)
        file = path / FILE
        with files.told(path, "read"):
            if not os.path.lexists(file):
                if os.path.lexists(path / EXPORT):
                    return cls(path, read_record(path / EXPORT), exported=True)
                reason = "contains no run.json" if os.path.lexists(path) else "does not exist"
                raise UserError(f"{path} is not a run: it {reason}. Runs are created by `etd train`.")
        return cls(path, read_record(file))

    def require(self) -> Experiment:
        """The experiment, or a UserError if the class of a part is missing."""
        missing = unavailable(self.experiment)
        if missing and (lost := self.record.get("unwritable")):
            raise UserError(
                f"{self.path} can be resumed, evaluated or filmed only by the process that started it: {lost[0]}. "
                "Define it in an importable module, and new runs can be opened anywhere."
            )
        for one in missing:
            raise UserError(one.why)
        return self.experiment

    def extend(self, experiment: Experiment) -> None:
        """Replace the experiment by one that differs only in its steps."""
        self.experiment = experiment
        self.record["experiment"] = to_dict(experiment)
        self._write_record()

    @property
    def asked(self) -> dict[str, Any]:
        """What the command asked for besides the experiment: the return to stop at, and modules to import."""
        return {name: self.record[name] for name in ("until", "imports") if name in self.record}

    def ask(self, until: float | None, imports: Sequence[str]) -> None:
        """Record what the command asks for now. The last one counts: without ``until`` a resumed run goes to its
        end."""
        asked: dict[str, Any] = {} if until is None else {"until": float(until)}
        if imports:
            asked["imports"] = list(imports)
        if asked != self.asked:
            self.record = {name: value for name, value in self.record.items() if name not in self.asked} | asked
            self._write_record()

    def _write_record(self) -> None:
        files.write(self.path / FILE, json.dumps(self.record, indent=2) + "\n")

    def _set_aside(self, old: list[Path]) -> None:
        """Move the files of the run that this one replaces into a folder, until this one has a checkpoint. An older run
        that is still there is the one worth keeping: its successor never got that far."""
        if self.aside.is_dir():
            for file in old:
                _remove(file)
        else:
            for file in old:
                if os.path.lexists(file):
                    target = self.aside / file.relative_to(self.path)
                    files.make_folder(target.parent)
                    file.replace(target)
                    files.flush_folder(target.parent)
        files.flush_folder(self.path / "checkpoints")  # no checkpoint of the old run comes back to the new one

    def put_back(self) -> None:
        """Undo the replacement of an earlier run, if this one failed before its first checkpoint; if there was none to
        replace, and this one has not even a row, leave nothing of it."""
        if self.checkpoints():
            return
        if not self.aside.is_dir():
            if not self.metrics_file.exists():
                (self.path / FILE).unlink(missing_ok=True)
                files.remove_empty([self.path / "checkpoints"])
            return
        for file in [self.path / FILE, self.metrics_file]:
            _remove(file)
        for name in (FILE, self.metrics_file.name, *(f"checkpoints/{file.name}" for file in _numbered(self.aside))):
            if os.path.lexists(self.aside / name):
                (self.aside / name).replace(self.path / name)
        shutil.rmtree(self.aside)

    @property
    def aside(self) -> Path:
        """Where the run that this one replaces waits until this one has a checkpoint."""
        return self.path / "replaced"

    def _refuse_links(self) -> None:
        """A run is written to its own files and folders; a link could lead anywhere."""
        for name in (self.metrics_file.name, "checkpoints", self.aside.name, "tensorboard", "wandb"):
            _refuse_link(self.path / name)

    def _sweep(self) -> None:
        """Remove what killed processes left behind, under names of this version and of etd 0.1."""
        own = (".run.json.*.json", ".metrics.csv.*.csv", "run.json.part", "metrics.csv.part")
        for pattern in (*own, "checkpoints/.*.npz", "checkpoints/*.part"):
            for file in self.path.glob(pattern):
                if file.is_file() or file.is_symlink():
                    file.unlink()

    # Metrics -----------------------------------------------------------------------------------------------------

    @property
    def metrics_file(self) -> Path:
        """The CSV of per-seed metrics."""
        return self.path / "metrics.csv"

    @property
    def seeds(self) -> range:
        """The numbers of its seeds."""
        return range(self.experiment.seed, self.experiment.seed + self.experiment.seeds)

    def index(self, seed: int) -> int:
        """The place of a seed among them, or a UserError."""
        if is_whole(seed, 0) and seed in self.seeds:
            return int(seed) - self.seeds[0]
        known = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        raise UserError(f"{self.path} has no seed {seed!r}; it has {known}.")

    def _table(self) -> Table:
        return table.parse(self._content(), self.seeds)

    def _content(self) -> bytes:
        """What is in metrics.csv; nothing if it does not exist."""
        if not os.path.lexists(self.metrics_file):
            return b""
        try:
            return files.read(self.metrics_file, table.LARGEST)
        except OSError as error:
            raise UserError(
                f"{self.metrics_file} cannot be read: {files.reason(error)}. Move it away to go on without it."
            ) from error

    def flaws(self, iteration: int | None = None) -> str:
        """A sentence on rows that are missing, written twice or unreadable up to ``iteration``, by default that of the
        newest checkpoint; empty if there are none."""
        if iteration is None:
            iteration = int(newest.stem) if (newest := next(iter(self.checkpoints()), None)) else 0
        words = table.flaws(self._table(), self.seeds, iteration)
        return f"The metrics of {self.path} are not whole: {words}. Curves and statistics do without." if words else ""

    def log(self, rows: list[dict[str, float]]) -> None:
        """Append rows, one per seed. The first rows fix the columns, even if another version resumes the run."""
        _refuse_link(self.metrics_file)
        fresh = not self.metrics_file.exists()
        with (
            files.told(self.metrics_file),
            self.metrics_file.open("a+", newline="", encoding="utf-8") as file,
        ):
            file.seek(0)
            columns = list(rows[0]) if fresh else next(csv.reader(file), [])
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows(rows)

    def flush(self) -> None:
        """Make the rows logged so far durable, as the checkpoint that follows them is."""
        if self.metrics_file.exists():
            with self.metrics_file.open("rb+") as file:
                os.fsync(file.fileno())
            files.flush_folder(self.path)

    def rewind(self, iteration: int) -> None:
        """Drop rows logged after ``iteration``, which the resumed run writes again; if none remain, drop the file. If
        any line cannot be read, the file is copied first."""
        self._refuse_links()
        self._sweep()
        content = self._content()
        found = table.parse(content, self.seeds)
        if found.unreadable:
            files.write(self.path / DAMAGED, content)
        rows = [row for row, number in zip(found.rows, found.iterations(), strict=True) if number <= iteration]
        if rows:
            files.write(self.metrics_file, table.text([found.header, *rows]))
        else:
            self.metrics_file.unlink(missing_ok=True)

    def metrics(self) -> dict[str, np.ndarray]:
        """Every column as an array [rows], of whole numbers where all are; rows are ordered by iteration, then seed.
        ``pandas.DataFrame(run.metrics())`` is the same as a table."""
        return self._table().columns()

    def keep(self, folder: Path, points: int = 50) -> Run:
        """A small copy for a repository: the record, and metrics of about ``points`` iterations, including the last."""
        if folder.resolve() == self.path.resolve():
            raise UserError(f"{folder} is the run itself, which a copy would overwrite. Choose another folder.")
        found = self._table()
        numbers = found.iterations()
        chosen = {round(max(numbers, default=0) * (k + 1) / points) for k in range(points)}
        thinned = [row for row, number in zip(found.rows, numbers, strict=True) if number in chosen]
        files.write(folder / "metrics.csv", table.text([found.header, *thinned]))
        kept = Run(folder, self.record, self.experiment)
        kept._write_record()
        return kept

    @property
    def kept(self) -> bool:
        """Whether this is such a copy: it has no checkpoints folder, so it cannot be resumed."""
        return not (self.path / "checkpoints").is_dir()

    # Checkpoints -------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return _numbered(self.path)

    def save(self, state: PyTree, iteration: int) -> Path:
        """Write the whole state, then drop all but the newest checkpoints up to it; a later one is of a damaged end
        that was gone back on."""
        file = self.path / "checkpoints" / f"{iteration:07d}.npz"
        self._refuse_links()
        self._sweep()
        self.flush()
        checkpoint.write(file, state)
        if self.aside.is_dir():
            shutil.rmtree(self.aside)
        there = [old for old in self.checkpoints() if old.is_file() or old.is_symlink()]
        kept = [old for old in there if int(old.stem) <= iteration][:KEPT]
        for old in set(there) - set(kept):
            old.unlink()
        return file

    def load(self, like: PyTree) -> tuple[PyTree, int, list[str]]:
        """The newest intact state in the shape of ``like``, its iteration, and a sentence per damaged checkpoint."""
        complaints: list[str] = []
        for file in self.checkpoints():
            try:
                return checkpoint.read(file, like), int(file.stem), complaints
            except MismatchError as error:
                raise UserError(self._mismatch(file, str(error))) from error
            except PermissionError as error:
                raise UserError(f"{file} cannot be read: {files.reason(error)}. Make it readable first.") from error
            except DamagedError as error:
                complaints.append(f"Checkpoint {file.name} is damaged ({error}); trying the previous one.")
        tried = f" ({' '.join(complaints)})" if complaints else ""
        raise UserError(f"{self.path} has no readable checkpoint{tried}. Start a new run under another --out.")

    def _mismatch(self, file: Path, how: str) -> str:
        made = {"etd": {"version": self.record.get("versions", {}).get("etd", "?")}, **self.record.get("sources", {})}
        versions = ", ".join(f"{name} {known.get('version', '')}".strip() for name, known in made.items())
        return (
            f"Checkpoint {file.name} of {self.path} is intact but does not fit the current code: {how}. The network or "
            f"the state has changed since it was written (by {versions}). The run is untouched; resume it with the "
            "code that wrote it, or start a new run under another --out."
        )


def _numbered(folder: Path) -> list[Path]:
    """The checkpoints in the directory of a run, whatever they are, newest first."""
    found = [file for file in (folder / "checkpoints").glob("*.npz") if re.fullmatch("[0-9]{1,15}", file.stem)]
    return sorted(found, key=lambda file: int(file.stem), reverse=True)


def _remove(path: Path) -> None:
    """Whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _surroundings(seeds: int) -> dict[str, Any]:
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    versions = {"etd": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in names}
    first, count = jax.devices()[0], compiled.devices(seeds)
    device = {"kind": first.device_kind, "platform": first.platform} | ({"count": str(count)} if count > 1 else {})
    return {"versions": versions, "device": device}


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(
            f"{path} is a symbolic link; a run writes only to files of its own. Replace it by what it links to."
        )


def refuse_run_file(out: Path) -> Path:
    """``out`` itself, unless it cannot be written or that would destroy a part of a run."""
    folder = files.refuse_unwritable(out).parent
    inside = (folder / "run.json").exists() and out.name in ("run.json", "metrics.csv", "checkpoints")
    if inside or (folder.name == "checkpoints" and (folder.parent / "run.json").exists()):
        raise UserError(f"{out} is part of a run and would be overwritten. Choose another --out.")
    return out
