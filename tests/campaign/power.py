"""A simulated power cut: what a disk may hold of a folder if only what was flushed is sure to be there.

``watch`` replaces ``os.fsync`` in a process and records what each call makes durable: of a file its bytes, of a folder
its names. ``cut`` builds a folder from that record and the folder as the processes left it. What was not flushed since
it changed is there or not, by chance: a new name, an old one that was removed or replaced, and bytes, of which the tail
may be missing or zero. A name counts for itself, so that even the order of changes in a folder is not relied on.

The record is a folder ``disk`` on the same file system: ``contents/I`` holds the durable bytes of inode I, ``names/I``
those of a folder, and ``links/I`` is a hard link, which keeps the number of a deleted file from being used again.
"""

from __future__ import annotations

import json
import os
import random
import stat
from contextlib import suppress
from pathlib import Path

Names = dict[str, tuple[int, bool]]
"""Inode by name, and whether it is a folder."""


def watch() -> None:
    """Record what this process flushes under CAMPAIGN_ROOT in the folder CAMPAIGN_DISK, if these are set."""
    if "CAMPAIGN_DISK" not in os.environ:
        return
    root, disk = (Path(os.environ[name]).resolve() for name in ("CAMPAIGN_ROOT", "CAMPAIGN_DISK"))

    def recorded(flush):
        def call(handle):
            flush(handle)
            path = Path(f"/proc/self/fd/{handle if isinstance(handle, int) else handle.fileno()}").readlink()
            if path.is_relative_to(root):
                note(path, disk)

        return call

    os.fsync, os.fdatasync = recorded(os.fsync), recorded(os.fdatasync)


def settle(root: Path, disk: Path) -> None:
    """Begin a record in which all that is under ``root`` is durable."""
    for name in ("contents", "names", "links"):
        (disk / name).mkdir(parents=True)
    for path in [root, *root.rglob("*")]:
        note(path, disk)


def note(path: Path, disk: Path) -> None:
    """Record that the bytes of a file or the names in a folder are durable."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        names = {
            name: (inode, folder)
            for name, (inode, folder) in names_in(path).items()
            if folder or _link(path / name, disk / "links" / str(inode))
        }
        _write(disk / "names" / str(status.st_ino), json.dumps(names).encode())
    else:
        _link(path, disk / "links" / str(status.st_ino))
        _write(disk / "contents" / str(status.st_ino), path.read_bytes())


def names_in(folder: Path) -> Names:
    found: Names = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            found[entry.name] = (entry.inode(), entry.is_dir(follow_symlinks=False))
    return found


def _link(path: Path, target: Path) -> bool:
    """Link a file; False if another process has just removed it."""
    with suppress(FileExistsError):
        try:
            os.link(path, target)
        except FileNotFoundError:
            return False
    return True


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all: the process may be killed here, too."""
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(data)
    part.rename(file)


def cut(root: Path, disk: Path, image: Path, chance: random.Random) -> None:
    """Write to the new folder ``image`` what may be left of ``root`` after a power cut now."""
    _rebuild(root.stat().st_ino, root, disk, image, chance)


def _rebuild(inode: int, path: Path | None, disk: Path, image: Path, chance: random.Random) -> None:
    """A folder; ``path`` is where it is now, None if it was removed."""
    image.mkdir()
    durable, now = durable_names(disk, inode), names_in(path) if path else {}
    for name in sorted(durable.keys() | now.keys()):
        entry = chance.choice([durable.get(name), now.get(name)])
        if entry is None:
            continue
        here = path / name if path and now.get(name) == entry else None
        if entry[1]:
            _rebuild(entry[0], here, disk, image / name, chance)
        else:
            current = (here or disk / "links" / str(entry[0])).read_bytes()
            (image / name).write_bytes(torn(_contents(disk, entry[0]), current, chance))


def durable_names(disk: Path, inode: int) -> Names:
    """Of a folder, as of its last flush."""
    file = disk / "names" / str(inode)
    return {name: tuple(entry) for name, entry in json.loads(file.read_text()).items()} if file.exists() else {}


def _contents(disk: Path, inode: int) -> bytes:
    file = disk / "contents" / str(inode)
    return file.read_bytes() if file.exists() else b""


def torn(durable: bytes, current: bytes, chance: random.Random) -> bytes:
    """What may be left of a file: at least the bytes that are durable; of later ones, a part."""
    if current == durable:
        return current
    if not current.startswith(durable):  # written over
        return chance.choice([durable, current, current[: chance.randint(0, len(current))]])
    begin, end = sorted(chance.randint(len(durable), len(current)) for _ in range(2))
    return chance.choice(
        [
            current,
            durable,
            current[:begin],
            current[:begin] + bytes(len(current) - begin),
            current[:begin] + bytes(end - begin) + current[end:],
        ]
    )
