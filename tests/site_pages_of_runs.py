"""Gathers sites and parses pages for tests: tags, texts and tables of a page, the value of a data script."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from reports.site.content import Site, gather
from tbench.history.index import RunHistory

VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}


@contextlib.contextmanager
def gathered(folder: Path) -> Iterator[Site]:
    """Gather the site of all runs below a folder."""
    with RunHistory.open(folder / ".index") as history:
        history.update(folder)
        yield gather(history, [folder])


class ReadPage(HTMLParser):
    """Parsed page, checked for nesting: tags, text and table rows."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.rows: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag == "tr":
            self.rows.append("")
        if tag in ("td", "th", "li", "dt", "dd"):
            self.handle_data(" ")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("title", "script"):
            self.text += data
        if self.rows and "tr" in self._open:
            self.rows[-1] += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def of_class(self, name: str) -> list[dict[str, str]]:
        return [attrs for _, attrs in self.tags if name in attrs.get("class", "").split()]

    def row(self, start: str) -> str:
        """Return the text of the first row that starts with a text."""
        found = (" ".join(row.split()) for row in self.rows)
        return next(row for row in found if row.startswith(start))

    @property
    def links(self) -> list[str]:
        return [attrs["href"] for tag, attrs in self.tags if tag == "a" and "href" in attrs]


def trial_html(run_folder: Path, name: str) -> str:
    """Return what the page of a run's trials shows for `TASK--SEED`."""
    key = f"trials {run_folder.name}"
    chunks = script_value((run_folder / "trials.js").read_text(), key)
    at = next(number for number, names in enumerate(chunks) if name in names)
    packed = script_value((run_folder / f"trials-{at}.js").read_text(), f"{key} {at}")
    lines = gzip.decompress(base64.b64decode(packed)).decode().split("\n")
    return str(json.loads(lines[chunks[at].index(name)])["html"])


def script_value(text: str, name: str) -> Any:
    """Return the value that a script stores in the page's global under a name."""
    start = f"window.TB = window.TB || {{}}; TB[{json.dumps(name)}] = "
    assert text.startswith(start)
    assert text.endswith(";\n")
    assert not {"<", ">", "&", "\u2028", "\u2029"} & set(text)
    return json.loads(text[len(start) : -2])
