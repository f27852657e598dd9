"""One thing that was looked at."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """What was seen, in plain words, and whether it is as it should be."""

    good: bool
    words: str
