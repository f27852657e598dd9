"""Files are replaced whole: written beside their place under a name of their own, flushed, then renamed.

A process that is killed leaves the old file or the new one, never half of one. After a power cut a file that was
written is still there: its folder is flushed, too, and the folder's own name when it is made. What a symbolic link
points to is not touched: the rename replaces the link itself. What is no file, such as a named pipe, is not read: that
could take for ever. What the system refuses is a UserError that names the file.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from etd.core.errors import UserError

_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space, then try again",
    errno.EDQUOT: "your share of the disk is full. Free some space, then try again",
    errno.EFBIG: "the system allows no larger file here. Choose another place",
    errno.EACCES: "permission denied. Choose another place, or ask for the permission",
    errno.EPERM: "permission denied. Choose another place, or ask for the permission",
    errno.EROFS: "the file system is read-only. Choose another place",
    errno.ENAMETOOLONG: "its name is too long. Choose a shorter one",
    errno.ENOTDIR: "a file is in the way. Choose another place",
    errno.EEXIST: "a file is in the way. Choose another place",
    errno.EISDIR: "it is a folder. Name a file",
    errno.ENOENT: "it does not exist",
    errno.ELOOP: "its symbolic links lead in a circle. Name another",
}


class DiskError(UserError):
    """A file that the system would not read or write."""


@contextmanager
def told(path: Path, how: str = "written") -> Iterator[None]:
    """Within it, what the system refuses is a DiskError about ``path``, which cannot be ``how``: written, read."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's
            raise
        raise DiskError(sentence(path, error, how)) from error
    except ValueError as error:
        if "embedded null" not in str(error):  # "byte" or, from Python 3.13 on, "character in path"
            raise
        raise DiskError(f"{str(path)!r} is not a path: it contains a null byte.") from error


def sentence(path: str | Path, error: OSError, how: str) -> str:
    """Why the system would not read or write ``path``."""
    name = str(path) if len(str(path)) < 200 else f"{str(path)[:100]}..."
    return f"{name} cannot be {how}: {_REASONS.get(error.errno or 0, error.strerror)}."


def path_of(given: str | os.PathLike[str]) -> Path:
    """``given`` as a Path; a UserError if it is none."""
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{given!r} is not a path. Pass a string or a Path.")
    return Path(given)


def refuse_unseen(path: Path) -> None:
    """An OSError if the system will not say what is at ``path``; ``exists`` and its like say no then, from Python 3.14
    on."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # nothing is there
            raise


def refuse_unwritable(path: Path, folder: bool = False) -> Path:
    """``path`` itself if a file, or a ``folder``, can be made there as far as one can tell without making it: better
    known before the work than after it."""
    with told(path):
        refuse_unseen(path)
        if not folder and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "")
        there = path if folder else path.parent
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "")
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "")
    return path


def make_folder(path: Path) -> list[Path]:
    """Make a folder and the folders it is in; returns those that were missing, the innermost first."""
    missing: list[Path] = []
    with told(path):
        try:
            missing += [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            remove_empty(missing)
            raise
    for folder in missing:
        flush_folder(folder.parent)
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove these folders, the innermost first, as far as they are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place on leaving, or vanishes if that fails; so does the folder
    it is in, which is made if it is missing."""
    made = make_folder(path.parent)
    with told(path), _removing(made):
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


@contextmanager
def _removing(folders: list[Path]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove_empty(folders)
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


def text(path: Path, largest: int = 1_000_000) -> str:
    """The text of a file the user names."""
    try:
        with told(path, "read"):
            return read(path, largest).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}.") from error


def reason(error: Exception) -> str:
    """The words of an error, without its number and the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


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


def _refuse_other(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(f"it is a {'folder' if stat.S_ISDIR(mode) else 'pipe or device'}, not a file")


def _umask() -> int:
    """What new files are not allowed; it can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
