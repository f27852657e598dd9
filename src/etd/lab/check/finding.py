"""The result of one check."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """What was found, in plain words, and whether it is as it should be."""

    good: bool
    words: str
