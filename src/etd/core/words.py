"""Text for people: numbers with their nouns, and nothing that could steer a terminal.

Ids, file names and the texts of other people's exceptions may hold any character. An escape sequence among them could
clear the screen or fake what is shown on it.
"""

from __future__ import annotations

import unicodedata


def counted(number: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "seed"), counted(5000, "step")
    ('1 seed', '5,000 steps')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def printable(text: str) -> str:
    r"""The text with control characters, other than line feeds and tabs, and halves of surrogate pairs as escapes.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return "".join(_escaped(letter) if unicodedata.category(letter) in ("Cc", "Cs") else letter for letter in text)


def _escaped(letter: str) -> str:
    return letter if letter in "\n\t" else letter.encode("unicode_escape").decode()


def say(text: str) -> None:
    """Print one message."""
    print(printable(text))
