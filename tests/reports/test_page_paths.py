"""Every name has its own path in a site, and links lead from page to page."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

import pytest

from reports.page_paths import NIGHTS, TASKS, night_page, relative_url, slug, task_page


@pytest.mark.parametrize(
    ("here", "target", "link"),
    [
        ("index.html", "runs/a/index.html", "runs/a/index.html"),
        ("nights/n.html", "index.html", "../index.html"),
        ("nights/n.html", "nights/m.html", "m.html"),
        ("runs/a/index.html", "runs/b/index.html", "../b/index.html"),
        ("runs/a/t--0.html", "assets/site.css", "../../assets/site.css"),
        ("runs/a/index.html", "runs/a/index.html", "index.html"),
        ("index.html", "tasks/a b#c d", "tasks/a%20b#c%20d"),
        ("index.html", "a:b.html", "a%3Ab.html"),
    ],
)
def test_a_link_leads_from_page_to_page(here: str, target: str, link: str) -> None:
    assert relative_url(here, target) == link
    path = unquote(link.partition("#")[0])
    assert posixpath.normpath(posixpath.join(posixpath.dirname(here), path)) == target.partition("#")[0]


@pytest.mark.parametrize("name", ["index", "Index"])
def test_no_night_and_no_task_replaces_the_list(name: str) -> None:
    assert night_page(name).lower() != NIGHTS
    assert task_page(name).lower() != TASKS


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".", "..", "a.", "x" * 500, "\ud800", "ü", "a\nb"])
def test_any_name_becomes_a_file_name(name: str) -> None:
    found = slug(name)
    assert "/" not in found
    assert 0 < len(found) < 60
    assert not found.startswith(".")


def test_different_names_have_different_paths() -> None:
    names = ["a b", "a_b", "a-b", "a/b", "a  b", "ab"]
    assert len({slug(name) for name in names}) == len(names)
