"""Files are replaced whole: written beside their place under a name of their own, flushed, then renamed.

A process that is killed leaves the old file or the new one, never half of one. After a power cut a file that was
written is still there: its folder is flushed, too, and the folder's own name when it is made. What a symbolic link
points to is not touched: the rename replaces the link itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place on leaving, or vanishes if that fails."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        part.chmod(0o666 & ~_umask())
        yield part
        with part.open("rb") as stream:
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
