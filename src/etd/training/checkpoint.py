"""A checkpoint: the whole training state as one NumPy archive, an array per leaf, named by its path in the state.

It is written and flushed under a temporary name, then renamed atomically, so a process killed at any moment leaves only
complete checkpoints. The archive's checksum of each array detects later damage. Nothing in a file is believed: arrays
are read without pickle, and none whose header asks for another shape than the code's is read at all. (Orbax was the
alternative: for a state of a few megabytes on one host its many files and threads buy nothing, and it does not verify
what it reads.)
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from etd.core import files
from etd.core.types import PyTree
from etd.training.migrate import older_name

VERIFIED = 1 << 30
"""Bytes; an archive that does not fit the code and is larger is not read to the end to see whether it is damaged."""


class DamagedError(Exception):
    """Not a checkpoint, or no longer one."""


class MismatchError(Exception):
    """An intact checkpoint of another network or state."""


def write(file: Path, state: PyTree) -> None:
    """Replace the file by a checkpoint of ``state``."""
    with files.replacing(file) as part, part.open("wb") as stream:
        np.savez(stream, **arrays(state))


def read(file: Path, like: PyTree) -> PyTree:
    """The state in the shape of ``like``."""
    try:
        with files.opened(file) as stream, zipfile.ZipFile(stream) as archive:
            leaves = _read(archive, shapes(like))
    except (DamagedError, MismatchError, MemoryError, PermissionError):
        raise
    except Exception as error:  # whatever NumPy and zipfile stumble over in a damaged file
        raise DamagedError(files.reason(error)) from error

    return restored(like, leaves)


def arrays(state: PyTree) -> dict[str, Any]:
    """Every leaf in NumPy, by its path in the state."""
    return dict(_named(jax.device_get(_bare(state))))


def shapes(like: PyTree) -> dict[str, Any]:
    """Shape and type of each of ``arrays``."""
    return dict(_named(jax.eval_shape(_bare, like)))


def restored(like: PyTree, leaves: list[np.ndarray]) -> PyTree:
    """The state of these arrays, in the order of ``shapes``."""

    def dress(leaf: Any, array: np.ndarray) -> Any:
        return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)

    return jax.tree.map(dress, like, jax.tree.unflatten(jax.tree.structure(like), leaves))


def _bare(state: PyTree) -> PyTree:
    """Random keys as their raw data, which is what files store."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _named(state: PyTree) -> Iterator[tuple[str, Any]]:
    """(name, array) of every leaf; the name is its path in the state."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def _read(archive: zipfile.ZipFile, wanted: dict[str, Any]) -> list[np.ndarray]:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise DamagedError("it holds two arrays of one name")
    try:
        leaves = []
        for name, shape in wanted.items():
            found = members.pop(name, None) or members.pop(older_name(name), None)
            if found is None:
                raise MismatchError(f"it has no {name}")
            leaves.append(_array(archive, found, name, shape))
        if members:
            raise MismatchError(f"it has {min(members)}, which the code does not")
    except MismatchError:
        _verify(archive)  # a damaged name or header is not another state's
        raise
    return leaves


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, wanted: Any) -> np.ndarray:
    with archive.open(member) as stream:
        shape, dtype = _header(stream, name)
        size = stream.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise DamagedError(f"{name} holds Python objects, which etd neither writes nor reads")
    if size != member.file_size:
        raise DamagedError(f"the header of {name} asks for {size:,} bytes of {member.file_size:,}")
    if (shape, dtype) != (wanted.shape, wanted.dtype):
        has, needs = f"{dtype}{list(shape)}", f"{wanted.dtype}{list(wanted.shape)}"
        raise MismatchError(f"{name} is {has} in the checkpoint and {needs} in the code")
    with archive.open(member) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype]:
    known = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, _, dtype = known[np.lib.format.read_magic(stream)](stream)
    except Exception as error:  # a header is a Python expression, in which anything may be wrong
        raise DamagedError(f"the header of {name} cannot be read") from error
    return shape, dtype


def _verify(archive: zipfile.ZipFile) -> None:
    """Raise an error if a checksum is wrong, or members seem to be hidden in a comment, which etd never writes."""
    if any(member.comment for member in archive.infolist()):
        raise DamagedError("its list of arrays is broken")
    if sum(member.file_size for member in archive.infolist()) > VERIFIED:
        return
    for member in archive.infolist():
        with archive.open(member) as stream:
            while stream.read(1 << 20):
                pass
