"""The one exception for mistakes a user can fix. Its message says what was wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from etd.core.words import printable


class UserError(ValueError):
    """A mistake that the user can put right. The command line shows its sentence without a traceback.

    >>> import etd
    >>> try:
    ...     etd.Task("MiniGrid-DorKey-8x8-v0").spec
    ... except etd.UserError as error:
    ...     print(str(error)[:51])
    There is no environment 'MiniGrid-DorKey-8x8-v0'. D
    """

    def __str__(self) -> str:
        return printable(super().__str__())  # it may quote a file or somebody's exception


def unknown(kind: str, name: str, known: Iterable[str], more: str) -> UserError:
    """An error for an unknown name, with the closest match; ``more`` says where to look."""
    near = difflib.get_close_matches(name, list(known), 1, cutoff=0.4)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"There is no {kind} {name!r}.{guess} {more}")
