"""The pages of a written site as files: their kinds, and their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from site_pages_of_runs import script_value

KINDS = {
    "overview": r"index\.html",
    "nights": r"nights/index\.html",
    "night": r"nights/.+\.html",
    "all series": r"series/index\.html",
    "series": r"series/.+\.html",
    "run": r"runs/[^/]+/index\.html",
    "trial": r"runs/[^/]+/trial\.html",
    "tasks": r"tasks/index\.html",
    "task": r"tasks/.+\.html",
    "search": r"search/index\.html",
    "choice": r"compare/index\.html",
    "comparison": r"compare/.+--.+\.html",
}
"""Pattern of a page's path in the site, by kind; the first match counts."""
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
DRAWN = {"circle", "ellipse", "line", "path", "polygon", "polyline", "rect", "stop", "use"}
"""Elements of SVG that may close themselves."""


class PageText(HTMLParser):
    """Parsed page, checked for nesting, with its links and anchors."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID | DRAWN, f"<{tag}/> stays open in HTML"
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name != "style", f"<{tag} {name}> at {self.getpos()}"
            if name == "id":
                assert value not in self.anchors, f"#{value} twice"
                self.anchors.add(value or "")
            elif name in ("href", "src", "xlink:href"):
                self.links.append(value or "")


def pages(site: Path) -> list[Path]:
    """Return all pages."""
    return sorted(site.rglob("*.html"))


def addresses(page: Path) -> list[str]:
    """Return the addresses that a page answers: its own, or those of all trials of the run whose trials it shows."""
    here = page.resolve().as_uri()
    if page.name != "trial.html":
        return [here]
    chunks = script_value((page.parent / "trials.js").read_text(), f"trials {page.parent.name}")
    return [f"{here}?{name}" for names in chunks for name in names] or [here]


def kind_of(site: Path, page: Path) -> str:
    place = page.relative_to(site).as_posix()
    return next(kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, place))


def by_kind(site: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for page in pages(site):
        found.setdefault(kind_of(site, page), []).append(page)
    return found


def broken_links(site: Path) -> Iterator[str]:
    """Yield a line for each link out of the site, to a missing file, or to a missing anchor."""
    texts = {page: PageText(page.read_text(encoding="utf-8")) for page in pages(site)}
    for page, text in texts.items():
        for link in text.links:
            if link.startswith("data:"):
                continue
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            where = f"{page.relative_to(site)}: {link}"
            if parts.scheme or parts.netloc or not target.is_relative_to(site.resolve()):
                yield f"{where}: leads out of the site"
            elif not target.is_file():
                yield f"{where}: no such file"
            elif parts.fragment and target in texts and unquote(parts.fragment) not in texts[target].anchors:
                yield f"{where}: no such anchor"
