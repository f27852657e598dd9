"""A run is a directory; only this module reads or writes it.

    run.json            the resolved experiment, the versions and the device
    metrics.csv         one row per iteration and seed
    checkpoints/N.npz   the whole training state after N iterations, the newest few
    replaced/           the run that this one replaces, until it has a checkpoint

A checkpoint is one NumPy archive. It is written and flushed under a temporary name, then renamed atomically, so a
process killed at any moment leaves only complete checkpoints. The archive's checksum of each array detects later
damage, and the newest intact checkpoint is used. Arrays are read without pickle. (Orbax was the alternative: for a
state of a few megabytes on one host its many files and threads buy nothing, and it does not verify what it reads.)
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from etd.core import files
from etd.core.errors import UserError
from etd.core.types import PyTree
from etd.core.version import __version__
from etd.lab.runs.config import from_dict, sources, to_dict, unavailable, unwritable
from etd.lab.runs.migrate import FORMAT, older_name, upgrade
from etd.training.experiment import Experiment

KEPT = 2
"""How many checkpoints to keep; more than one, in case the newest is damaged."""

_DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError)


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Lock a run's directory, created if missing, while it is written to; any other process is refused. The system
    releases the lock when the process ends, however it ends. Folders that were made and are empty after an error are
    removed again."""
    made = files.make_folder(path)
    try:
        with _locked(path):
            yield
    except BaseException:
        files.remove_empty(made)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if os.name != "posix":
        yield
        return
    import fcntl

    with files.told(path):
        directory = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{path} is being trained by another process. Wait for it, or choose another --out."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(directory)


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

    def __init__(self, path: Path, record: dict[str, Any], experiment: Experiment | None = None):
        self.path = path
        self.record = record
        self.experiment: Experiment = experiment or _live.get(path.resolve()) or from_dict(record.get("experiment"))
        self.stopped = 0
        """the signal that ended the training that returned this object; 0 if none did"""

    @classmethod
    def create(cls, path: Path, experiment: Experiment, overwrite: bool = False) -> Run:
        """A fresh directory. An existing run is refused unless ``overwrite``; what a process leaves behind that was
        killed before it wrote run.json does not count as one."""
        record = {"format": FORMAT, "experiment": to_dict(experiment), "sources": sources(experiment)}
        if lost := unwritable(experiment):
            record["unwritable"] = lost
        run = cls(path, {**record, **_surroundings()}, experiment)
        old = [path / "run.json", run.metrics_file, *run.checkpoints()]
        if any(file.exists() for file in old) and not overwrite:
            raise UserError(
                f"{path} already exists. Continue it with `etd resume {path}`, choose another --out, or pass "
                "--overwrite to replace it."
            )
        files.make_folder(path / "checkpoints")
        try:
            with files.told(path):
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
        """The run at ``path``, or a UserError that says why there is none."""
        path = files.path_of(path)
        file = path / "run.json"
        with files.told(path, "read"):
            if not file.is_file():
                reason = "does not exist" if not path.exists() else "contains no run.json"
                raise UserError(f"{path} is not a run: it {reason}. Runs are created by `etd train`.")
        try:
            record = json.loads(files.read(file))
            version = int(record["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error}). Its experiment is lost; start a new run.") from error
        if version > FORMAT:
            raise UserError(
                f"{path} was written by a newer etd ({record.get('versions', {}).get('etd', '?')}); this is "
                f"{__version__}. Upgrade with `pip install --upgrade etd`."
            )
        return cls(path, upgrade(record))

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

    def _write_record(self) -> None:
        files.write(self.path / "run.json", json.dumps(self.record, indent=2) + "\n")

    def _set_aside(self, files: list[Path]) -> None:
        """Move the files of the run that this one replaces into a folder, until this one has a checkpoint. An older run
        that is still there is the one worth keeping: its successor never got that far."""
        if self.aside.is_dir():
            for file in files:
                file.unlink(missing_ok=True)
            return
        for file in files:
            if file.exists():
                target = self.aside / file.relative_to(self.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)

    def put_back(self) -> None:
        """Undo the replacement of an earlier run, if this one failed before its first checkpoint; if there was none to
        replace, and this one has not even a row, leave nothing of it."""
        if self.checkpoints():
            return
        if not self.aside.is_dir():
            if not self.metrics_file.exists():
                (self.path / "run.json").unlink(missing_ok=True)
                files.remove_empty([self.path / "checkpoints"])
            return
        for file in [self.path / "run.json", self.metrics_file]:
            file.unlink(missing_ok=True)
        for file in [file for file in self.aside.rglob("*") if file.is_file()]:
            file.replace(self.path / file.relative_to(self.aside))
        shutil.rmtree(self.aside)

    @property
    def aside(self) -> Path:
        """Where the run that this one replaces waits until this one has a checkpoint."""
        return self.path / "replaced"

    # Metrics -----------------------------------------------------------------------------------------------------

    @property
    def metrics_file(self) -> Path:
        """The CSV of per-seed metrics."""
        return self.path / "metrics.csv"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and rows of the CSV. A row cut short by a killed process or a full disk is dropped; without a
        header both are empty."""
        if not self.metrics_file.exists():
            return [], []
        text = self.metrics_file.read_text()
        header, *rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines())) or [[]]
        return (header, [row for row in rows if len(row) == len(header)]) if "iteration" in header else ([], [])

    def log(self, rows: list[dict[str, float]]) -> None:
        """Append rows, one per seed. The first rows fix the columns, even if another version resumes the run."""
        _refuse_link(self.metrics_file)
        fresh = not self.metrics_file.exists()
        with files.told(self.metrics_file), self.metrics_file.open("a+", newline="") as file:
            file.seek(0)
            columns = list(rows[0]) if fresh else next(csv.reader(file), [])
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows(rows)

    def flush(self) -> None:
        """Make the rows logged so far durable, as the checkpoint that follows them is."""
        if self.metrics_file.exists():
            with self.metrics_file.open("rb") as file:
                os.fsync(file.fileno())

    def rewind(self, iteration: int) -> None:
        """Drop rows logged after ``iteration``, which the resumed run writes again; if none remain, drop the file."""
        header, rows = self._table()
        kept = [row for row in rows if int(row[header.index("iteration")]) <= iteration]
        if kept:
            files.write(self.metrics_file, _csv([header, *kept]))
        else:
            self.metrics_file.unlink(missing_ok=True)

    def metrics(self) -> dict[str, np.ndarray]:
        """Every column as an array [rows]; rows are ordered by iteration, then seed."""
        header, rows = self._table()
        columns = enumerate(header) if rows else ()
        return {name: np.array([float(row[k] or "nan") for row in rows]) for k, name in columns}

    def keep(self, folder: Path, points: int = 50) -> Run:
        """A small copy for a repository: the record, and metrics of about ``points`` iterations, including the last."""
        if folder.resolve() == self.path.resolve():
            raise UserError(f"{folder} is the run itself, which a copy would overwrite. Choose another folder.")
        header, rows = self._table()
        numbers = [int(row[header.index("iteration")]) for row in rows]
        chosen = {round(max(numbers, default=0) * (k + 1) / points) for k in range(points)}
        thinned = [row for row, number in zip(rows, numbers, strict=True) if number in chosen]
        files.write(folder / "metrics.csv", _csv([header, *thinned]))
        kept = Run(folder, self.record)
        kept._write_record()
        return kept

    @property
    def kept(self) -> bool:
        """Whether this is such a copy: it has no checkpoints folder, so it cannot be resumed."""
        return not (self.path / "checkpoints").is_dir()

    # Checkpoints -------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        files = [f for f in (self.path / "checkpoints").glob("*.npz") if f.stem.isdigit()]
        return sorted(files, key=lambda f: int(f.stem), reverse=True)

    def save(self, state: PyTree, iteration: int) -> Path:
        """Write the whole state, then drop all but the newest checkpoints."""
        file = self.path / "checkpoints" / f"{iteration:07d}.npz"
        _refuse_link(file.parent)
        self.flush()
        for part in file.parent.glob(".*.npz"):  # of a process that was killed
            part.unlink()
        with files.replacing(file) as part, part.open("wb") as stream:
            np.savez(stream, **dict(_arrays(jax.device_get(_bare(state)))))
        _flush_folder(file.parent)
        if self.aside.is_dir():
            shutil.rmtree(self.aside)
        for old in self.checkpoints()[KEPT:]:
            old.unlink()
        return file

    def load(self, like: PyTree) -> tuple[PyTree, int, list[str]]:
        """The newest intact state in the shape of ``like``, its iteration, and a sentence per damaged checkpoint."""
        complaints: list[str] = []
        for file in self.checkpoints():
            try:
                return _restore(file, like), int(file.stem), complaints
            except MismatchError as error:
                raise UserError(self._mismatch(file, str(error))) from error
            except _DAMAGE as error:
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


def _bare(state: PyTree) -> PyTree:
    """Random keys as their raw data, which is what files store."""

    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _arrays(state: PyTree) -> Iterator[tuple[str, Any]]:
    """(name, array) of every leaf; the name is its path in the state."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


class MismatchError(Exception):
    """An intact checkpoint of another network or state."""


def _restore(file: Path, like: PyTree) -> PyTree:
    shapes = jax.eval_shape(_bare, like)
    leaves = []
    with np.load(file, allow_pickle=False) as archive:
        there = set(archive.files)
        for name, shape in _arrays(shapes):
            found = name if name in there else older_name(name)
            if found not in there:
                raise MismatchError(f"it has no {name}")
            there.discard(found)
            array = archive[found]
            if array.shape != shape.shape or array.dtype != shape.dtype:
                has, wanted = (f"{one.dtype}{list(one.shape)}" for one in (array, shape))
                raise MismatchError(f"{name} is {has} in the checkpoint and {wanted} in the code")
            leaves.append(array)
        if there:
            raise MismatchError(f"it has {min(there)}, which the code does not")

    def dress(leaf: Any, array: np.ndarray) -> Any:
        return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)

    return jax.tree.map(dress, like, jax.tree.unflatten(jax.tree.structure(like), leaves))


def _surroundings() -> dict[str, Any]:
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    versions = {"etd": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in names}
    device = jax.devices()[0]
    return {"versions": versions, "device": {"kind": device.device_kind, "platform": device.platform}}


def _csv(rows: list[list[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)


def _refuse_link(path: Path) -> None:
    """A run is written to its own files and folders; a link could lead anywhere."""
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


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system can flush a folder."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
