"""What `mkdocs build` does beyond its settings: pages from the rest of the repository, formulas, examples.

The site's pages link to files of the repository, as they would on a code host. Whatever they link to becomes part of
the site, at the same place: pages such as results/speed/README.md as pages, everything else as files to open.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(
    r"^( *)(```+)[^\n]*\n.*?^\1\2$|(?<=\n\n)(?:    [^\n]*\n)+|(?<!`)(`+)(?!`).+?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL
)
"""Fenced, indented and inline."""


# Pages -----------------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> None:
    """A folder in the nav stands for its pages, and formulas are a part of Markdown."""
    config.nav = _listed(config.nav)
    config.markdown_extensions.append(Formulas())  # type: ignore[arg-type]


def _listed(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_listed(one) for one in nav]
    if isinstance(nav, dict):
        return {name: _listed(one) for name, one in nav.items()}
    if not nav.endswith("/"):
        return nav
    pages = sorted((ROOT / "docs" / nav).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    return [f"{nav}{page.name}" for page in pages]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what is linked to, and what that links to."""
    named = re.findall(r"[\w/.-]+\.md", str(config.nav))
    left = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    left += [name for name in named if not (ROOT / "docs" / name).exists()]
    for path in left:
        if _uri(path) not in files.src_uris:
            files.append(
                File.generated(config, _uri(path), abs_src_path=str(ROOT / path), inclusion=InclusionLevel.INCLUDED)
            )
        if path.endswith(".md"):
            found = [_target(path, link) for _, _, link in LINK.findall(_prose((ROOT / path).read_text()))]
            left += [one for one in found if one and (ROOT / one).is_file() and one not in left]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the site."""
    uri = page.file.src_uri
    path = uri if (ROOT / uri).exists() and not (ROOT / "docs" / uri).exists() else f"docs/{uri}"

    def moved(link: re.Match[str]) -> str:
        target = _target(path, link[3])
        if target is None:
            return link[0]
        if (ROOT / target).is_dir():
            return link[2]  # a folder is no page
        where = posixpath.relpath(_uri(target), posixpath.dirname(uri) or ".")
        _, mark, heading = link[3].partition("#")
        return f"{link[1]}[{link[2]}]({where}{mark}{heading})"

    kept: list[str] = []

    def hidden(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    # Inline code may stand inside a link's words; blocks of code hold no links.
    text = LINK.sub(moved, CODE.sub(hidden, markdown))
    return re.sub(r"\0(\d+)\0", lambda place: kept[int(place[1])], text)


def _prose(markdown: str) -> str:
    return CODE.sub(lambda code: "`" if code[3] else "", markdown)


def _target(page: str, link: str) -> str | None:
    """The file of the repository that a page's link leads to; None if it leads elsewhere."""
    path = link.partition("#")[0]
    return None if ":" in link or not path else posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def _uri(path: str) -> str:
    """Where a file of the repository is in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


# Formulas --------------------------------------------------------------------------------------------------------


class Formulas(Extension):
    """$...$ and $$...$$ become MathML, which browsers draw without a script."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.inlinePatterns.register(_Formula(FORMULA, md), "formula", 185)  # after code, before escapes


FORMULA = r"(?<![\\\w$])(?:\$\$([^$]+)\$\$|\$(?!\s)([^$]+?)(?<!\s)\$)(?![\w$])"


class _Formula(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override] # noqa: N802
        made = convert((m[1] or m[2]).strip(), display="block" if m[1] else "inline")
        return self.md.htmlStash.store(made), m.start(0), m.end(0)


# Docstrings ------------------------------------------------------------------------------------------------------


class Doctests(griffe.Extension):
    """Examples in docstrings are code, which Markdown would take for quotations."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            example = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
            obj.docstring.value = example.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
