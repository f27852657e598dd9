"""Rich's console, safe for any text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from etd.core.words import printable


class Terminal(Console):
    """Text is shown, not obeyed: neither control characters nor, without ``markup=True``, rich's tags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)
