"""Self-contained HTML: tables, images and intervals as markup, and the page around them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO

from matplotlib.figure import Figure


class Html(str):
    """A string that is already markup; any other is escaped."""

    __slots__ = ()


def text(value: str) -> str:
    """The value as markup."""
    return value if isinstance(value, Html) else escape(value)


def document(title: str, body: str, broad: bool = False) -> str:
    """The whole page; ``broad`` for tables with many columns."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main{' class="broad"' if broad else ""}>
<h1>{escape(title)}</h1>
{body}
</main>
</body>
</html>
"""


def table(label: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table. The first cell of a row names it and stays visible while the others scroll."""
    top = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{text(first)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{escape(label)}" tabindex="0"><table class="{kind}">\n'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def note(words: str) -> str:
    """A paragraph in small print."""
    return f'<p class="note">{text(words)}</p>'


def code(words: str) -> str:
    """Preformatted text."""
    return f"<pre><code>{escape(words)}</code></pre>"


def details(summary: str, body: str) -> str:
    """A section that is collapsed at first."""
    return f"<details><summary>{text(summary)}</summary>\n{body}</details>\n"


def bar(value: float, low: float, high: float) -> Html:
    """A mark with its interval on a scale from 0 to 1 with a tick in the middle; the text beside it has the numbers."""
    span = f'<i style="left:{low:.1%};width:{high - low:.1%}"></i>' if low <= high else ""
    return Html(f'<span class="bar" aria-hidden="true">{span}<b style="left:{value:.1%}"></b></span>')


def drawing(figure: Figure, caption: str) -> str:
    """A figure as an embedded PNG."""
    stream = BytesIO()
    figure.savefig(stream, format="png")
    return picture("png", stream.getvalue(), caption, wide=len(figure.axes) > 1)


def picture(kind: str, content: bytes, caption: str, wide: bool = False) -> str:
    """An embedded image. A wide one scrolls on a phone instead of shrinking until it is unreadable."""
    data, words = base64.b64encode(content).decode(), escape(caption)
    image = f'<img alt="{words}" src="data:image/{kind};base64,{data}">'
    image = f'<div class="wide" role="region" aria-label="{words}" tabindex="0">{image}</div>' if wide else image
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


STYLE = """
:root { color-scheme: light dark; --ink: #1d2026; --dim: #5c6370; --ground: #ffffff; --card: #f5f6f8; --line: #dfe2e7;
  --mark: #d55e00; --holds: #1a7037; --fails: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --dim: #a0a7b4; --ground: #14161a; --card: #1d2026; --line: #343842;
    --mark: #ff9248; --holds: #5fcf80; --fails: #ff8a80; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--ground); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
main.broad { max-width: 76rem; }
p { max-width: 58rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.5rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; }
section h2 { margin-top: 1.5rem; }
.wide { overflow-x: auto; }
.wide img { min-width: 42rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.4rem 1.5rem 0.4rem 0; border-bottom: 1px solid var(--line); }
td { min-width: 9rem; }
tbody th { font-weight: 400; color: var(--dim); white-space: nowrap; }
.wide tbody th { position: sticky; left: 0; background: var(--ground); }
.dense { font-size: 0.875rem; }
.dense th, .dense td { padding-right: 1.1rem; min-width: 0; white-space: nowrap; }
.dense small { display: block; color: var(--dim); }
.dense th small { white-space: normal; max-width: 15rem; }
.claims th, .claims td { padding-right: 1.1rem; min-width: 0; }
.claims tbody th { white-space: normal; min-width: 10rem; color: inherit; }
.claims td:last-child { min-width: 12rem; }
.wide .claims tbody th { position: static; }
.holds, .holds-so-far, .fails, .not-run { font-weight: 600; white-space: nowrap; color: var(--dim); }
.holds, .holds-so-far { color: var(--holds); }
.fails { color: var(--fails); }
.bar { position: relative; display: block; width: 9rem; height: 0.9rem; margin-top: 0.2rem; background: var(--card); }
.bar { background-image: linear-gradient(var(--line), var(--line)); background-repeat: no-repeat; }
.bar { background-position: center; background-size: 1px 100%; }
.bar i, .bar b { position: absolute; background: var(--mark); }
.bar i { top: 0.25rem; height: 0.4rem; opacity: 0.4; }
.bar b { top: 0; height: 0.9rem; width: 3px; margin-left: -1.5px; }
.note, figcaption { color: var(--dim); font-size: 0.875rem; }
figure { margin: 1rem 0; }
figcaption { margin-top: 0.5rem; }
img { display: block; max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
pre { background: var(--card); border-radius: 6px; padding: 0.75rem 1rem; margin: 0.5rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: 0.8125rem/1.5 ui-monospace, monospace; }
details { margin: 0.5rem 0; }
details details { margin-left: 1rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
"""
