"""Limits of a dataclass field, declared with the field: ``scale: float = limited(1.0, above=0)``.

They are stored in the field's metadata, so they apply only to the class that declares it, not to other fields of the
same name. ``--set`` and every start of training check them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

LARGEST = 3.4028234e38
"""The largest float32."""
SEEDS = 1 << 31
"""Every seed is below this: a random key is made of an int32."""


@dataclass(frozen=True)
class Limits:
    """The allowed range of a number, or of a tuple's length; None sets no limit."""

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    even: bool = False

    def allow(self, value: Any) -> bool:
        """False for anything out of range, and for what is no finite float32."""
        if value is None:
            return True
        try:
            return self._contain(len(value) if isinstance(value, tuple) else value)
        except TypeError:
            return False

    def _contain(self, value: Any) -> bool:
        return bool(
            is_finite(value)
            and (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
            and (self.most is None or value <= self.most)
            and not (self.even and value % 2)
        )

    def __str__(self) -> str:
        words = [
            "even" if self.even else "",
            "" if self.above is None else f"greater than {self.above:g}",
            "" if self.least is None else f"at least {self.least:g}",
            "" if self.below is None else f"below {self.below:g}",
            "" if self.most is None else f"at most {self.most:g}",
        ]
        return " and ".join(word for word in words if word)


def is_finite(value: float) -> bool:
    """Whether a number is neither NaN nor infinite, in float32 either, which is what training computes in."""
    return bool(abs(value) <= LARGEST)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, Python's or NumPy's; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool) and is_finite(value)  # type: ignore[arg-type]


def is_whole(value: Any, least: int, most: int = SEEDS - 1) -> bool:
    """Whether a value is a whole number in this range, Python's or NumPy's; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most


def limited(
    default: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    even: bool = False,
) -> Any:
    """A dataclass field with a default value and limits.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Impact:
    ...     scale: float = limited(1.0, above=0)
    """
    return field(default=default, metadata={"limits": Limits(above, least, below, most, even)})
