"""One process trains a run at a time.

The lock is the system's (``flock``) and ends with the process, however it ends. It covers processes on one machine and,
on a network file system that passes locks on, as NFS 4 and SMB do, on several. Where there is none, as on Windows or
under an NFS server without locks, the user is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from etd.core import files
from etd.core.errors import UserError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FILE = ".lock"
"""Locked in place of the directory by file systems that lock only files open for writing, as NFS does."""
LISTED = Path("/proc/locks")
"""Where Linux lists the locks that are held, each with the inode of what is locked."""


@contextmanager
def claim(path: Path) -> Iterator[list[str]]:
    """Lock a run's directory, created if missing, while it is written to; any other process is refused. Yields what the
    user should know: nothing, or that there is no lock."""
    made = files.make_folder(path)
    handle = None
    try:
        handle = _locked(path)
        yield [f"{path} could not be locked here: do not train it in two processes at once."] if handle is None else []
    except BaseException:
        files.remove_empty(made)  # what a refused start has made
        raise
    finally:
        if handle is not None:
            os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process is seen to train a run. The lock is looked up, not tried: that could refuse a training that
    starts just now. Those of other machines, and on other systems than Linux, are not seen."""
    inodes = set()
    for target in (path, path / FILE):
        with suppress(OSError):
            inodes.add(str(target.stat().st_ino))
    try:
        rows = [line.split() for line in LISTED.read_text().splitlines()]
    except OSError:
        return False
    # By inode alone: some file systems give another device number here than stat does.
    return any(row[1] == "FLOCK" and row[-3].rpartition(":")[2] in inodes for row in rows if len(row) >= 8)


def _locked(path: Path) -> int | None:
    """A handle that holds the lock; None if there can be none."""
    if fcntl is None:
        return None
    writing = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    for target, how in ((path, os.O_RDONLY), (path / FILE, writing)):
        try:
            handle = os.open(target, how, 0o666)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError as error:
            os.close(handle)
            raise UserError(
                f"{path} is being trained by another process. Wait for it, or choose another --out."
            ) from error
        except OSError:  # no locks here
            os.close(handle)
    return None
