"""Files are replaced whole: written beside their place under a name of their own, flushed, then renamed.

A process that is killed leaves the old file or the new one, never half of one. After a power cut a file that was
written is still there: its folder is flushed, too, and the folder's own name when it is made. What a symbolic link
points to is not touched: the rename replaces the link itself. What is no file, such as a named pipe, is not read: that
could take for ever.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place on leaving, or vanishes if that fails."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        part.chmod(0o666 & ~_umask())
        yield part
        with part.open("rb+") as stream:  # Windows flushes only what is open for writing
            os.fsync(stream.fileno())
        part.replace(path)
        flush_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write(path: Path, content: bytes | str) -> None:
    """Replace a file by this content."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def opened(path: Path) -> BinaryIO:
    """A file for reading; an OSError, without waiting, if it is something else."""
    _refuse_other(path.stat().st_mode)
    # Not to wait even if it became a pipe just now.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    stream = os.fdopen(handle, "rb")
    try:
        _refuse_other(os.fstat(handle).st_mode)
    except OSError:
        stream.close()
        raise
    return stream


def read(path: Path, largest: int) -> bytes:
    """A file's content; an OSError if it is no file or larger than ``largest`` bytes."""
    with opened(path) as stream:
        if os.fstat(stream.fileno()).st_size <= largest:
            return stream.read()
    raise OSError(f"it has more than {largest:,} bytes")


def reason(error: Exception) -> str:
    """The words of an error, without its number and the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _refuse_other(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(f"it is a {'folder' if stat.S_ISDIR(mode) else 'pipe or device'}, not a file")


def make_folder(path: Path) -> None:
    """Make a folder, and those it is in, where they are missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Make names that were added, changed or removed durable, where the system can flush a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with suppress(OSError):  # not every file system can, and not every folder may be read
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """What new files are not allowed; it can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
