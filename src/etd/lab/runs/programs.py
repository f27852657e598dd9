"""Compiled programs are kept in the user's own cache, so that an experiment that was compiled once starts at once.

They are native code, so they are never read from a run's folder, which may come from somebody else: a run that was
downloaded is compiled anew. The cache belongs to this user and this machine; a folder that others may write to is not
used.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from etd.core import files
from etd.core.version import __version__
from etd.training.config import to_dict
from etd.training.experiment import Experiment

LIMIT = 2 << 30
"""Bytes; beyond it the programs that were not used for longest are deleted."""


def folder() -> Path:
    """Where the system keeps a user's caches; ETD_CACHE names another place."""
    if given := os.environ.get("ETD_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "etd"


@contextmanager
def cached() -> Iterator[Path | None]:
    """Within it, programs are read from the cache and kept there, unless JAX has a cache directory configured already
    or ours cannot be trusted. Yields the cache's folder, or None."""
    settings = {
        "jax_compilation_cache_dir": str(folder()),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_enable_xla_caches": "none",  # else the folder's name would be part of a program's key
    }
    before = {name: getattr(jax.config, name) for name in settings}
    if before["jax_compilation_cache_dir"] or not _private(folder()):
        yield None
        return
    try:
        _configure(settings)
        with _replacing_broken(folder()):
            yield folder()
    finally:
        _configure(before)
        _prune(folder())


def last_time(cache: Path | None, experiment: Experiment) -> float | None:
    """Seconds that compiling this experiment took here the last time, which is the best guess for this time; None if
    there was none."""
    if cache is None:
        return None
    try:
        seconds = float(files.read(cache / _clock(experiment), 100))
    except (OSError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def keep_time(cache: Path | None, experiment: Experiment, seconds: float) -> None:
    """Remember it for the next time."""
    if cache is not None:
        with suppress(files.DiskError):
            files.write(cache / _clock(experiment), f"{seconds:.1f}\n")


def _clock(experiment: Experiment) -> str:
    """The name of the file: the same for experiments that are compiled to the same programs on the same devices."""
    alike = to_dict(replace(experiment, steps=0, seed=0))
    how = [jax.__version__, __version__, jax.config.read("jax_disable_most_optimizations")]
    where = [device.device_kind for device in jax.local_devices()]
    text = json.dumps([alike, how, where], sort_keys=True, default=str)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.seconds"


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()  # JAX looks at the folder's name only once


@contextmanager
def _replacing_broken(path: Path) -> Iterator[None]:
    """Delete a program that cannot be read, such as one that a killed process wrote only half of, so that it is
    compiled and kept anew. JAX would warn of it in every process, never replace it, and has no setting for that."""
    cache: Any = compilation_cache
    read = cache.get_executable_and_time

    def read_or_delete(key: str, *args: Any, **more: Any) -> Any:
        try:
            return read(key, *args, **more)
        except Exception:  # whatever unpacking it raises
            with suppress(OSError):
                (path / f"{key}-cache").unlink()
            return None, None

    cache.get_executable_and_time = read_or_delete
    try:
        yield
    finally:
        cache.get_executable_and_time = read


def _private(path: Path) -> bool:
    """Make the folder if need be; whether it is this user's and nobody else may write to it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError:  # no home, no permission, a file in the way: compile without a cache
        return False
    return os.name != "posix" or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _prune(path: Path) -> None:
    with suppress(OSError):  # another process may be pruning, too
        oldest = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: file.stat().st_atime)
        excess = sum(file.stat().st_size for file in oldest) - LIMIT
        for file in oldest:
            if excess <= 0:
                break
            excess -= file.stat().st_size
            file.unlink()
