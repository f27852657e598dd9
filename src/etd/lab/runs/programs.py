"""Compiled programs are kept in the user's own cache, so that an experiment that was compiled once starts at once.

They are native code, so they are never read from a run's folder, which may come from somebody else: a run that was
downloaded is compiled anew. The cache belongs to this user and this machine; a folder that others may write to is not
used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache
from jax.experimental.compilation_cache.compilation_cache import reset_cache

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
def cached() -> Iterator[None]:
    """Within it, programs are read from the cache and kept there, unless JAX has a cache directory configured already
    or ours cannot be trusted."""
    settings = {
        "jax_compilation_cache_dir": str(folder()),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_enable_xla_caches": "none",  # else the folder's name would be part of a program's key
    }
    before = {name: getattr(jax.config, name) for name in settings}
    if before["jax_compilation_cache_dir"] or not _private(folder()):
        yield
        return
    try:
        _configure(settings)
        with _replacing_broken(folder()):
            yield
    finally:
        _configure(before)
        _prune(folder())


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
        files = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: file.stat().st_atime)
        excess = sum(file.stat().st_size for file in files) - LIMIT
        for file in files:
            if excess <= 0:
                break
            excess -= file.stat().st_size
            file.unlink()
