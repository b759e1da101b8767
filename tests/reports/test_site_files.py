"""A site as files: pages are well-formed, links work, hostile texts are neither markup nor paths out of the folder."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hostile_runs import SECRET
from markupsafe import escape
from site_pages import KINDS, PageText, broken_links, by_kind, pages
from written_history import DROP, DROPPED, NIGHTS, STEADY

from reports.page_frame import POLICY
from reports.site.writer import WrittenSite

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture(params=["nights", "hostile"])
def site(request: pytest.FixtureRequest) -> Path:
    written: Path = request.getfixturevalue(request.param)
    return written


def test_a_site_has_pages_of_every_kind(nights: Path) -> None:
    assert set(by_kind(nights)) == set(KINDS)


def test_the_drop_is_an_alarm_and_the_noise_is_none(written_nights: WrittenSite) -> None:
    alarms = {series.name: sorted(series.alarms) for series in written_nights.site.series}
    assert alarms[STEADY] == []
    assert alarms[DROPPED]
    assert min(int(name[6:8]) for name in alarms[DROPPED]) in range(DROP, NIGHTS)
    assert written_nights.notes == ()


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_shown(written_hostile: WrittenSite) -> None:
    names = {run.row.path.name for run in written_hostile.site.runs}
    assert {"bare", "cut off", "many-seeds", "nothing-yet"} <= names
    assert sum("of a newer version" in note or "/torn/" in note for note in written_hostile.notes) == 2


def test_links_lead_to_files_and_anchors_of_the_site(site: Path) -> None:
    assert list(broken_links(site)) == []


def test_every_page_has_the_policy_and_no_frame_or_picture(site: Path) -> None:
    for page in pages(site):
        html = page.read_text(encoding="utf-8")
        assert f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">' in html, page
        assert not PageText(html).tags & {"iframe", "object", "embed", "img", "base", "style"}, page
        assert 'class="injected"' not in html, page
        assert not re.search(r"<script(?!( defer)? src=\")", html), f"{page}: a script in the page itself"


def test_everything_stays_below_the_folder_and_nothing_outside_is_read(hostile: Path) -> None:
    outside = hostile.parent
    assert sorted(path.name for path in outside.iterdir()) == ["outside", "runs", "site"]
    assert not [file for file in hostile.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert not [file for file in hostile.rglob("*") if not re.fullmatch(r"[A-Za-z0-9_.-]+", file.name)]


def test_scripts_with_data_hold_no_markup_and_no_line_end_of_javascript(hostile: Path) -> None:
    scripts = [file for file in hostile.rglob("*.js") if "assets" not in file.parts]
    assert scripts
    for file in scripts:
        text = file.read_text(encoding="utf-8")
        assert not set("<\u2028\u2029") & set(text), file


@pytest.mark.parametrize("which", ["nights", "hostile"])
def test_the_feed_is_atom_with_an_entry_for_each_alarm(which: str, request: pytest.FixtureRequest) -> None:
    feed = ET.parse(Path(request.getfixturevalue(which)) / "feed.xml").getroot()
    assert feed.tag == f"{ATOM}feed"
    entries = feed.findall(f"{ATOM}entry")
    assert bool(entries) == (which == "nights")
    for each in (feed, *entries):
        assert all(each.findtext(f"{ATOM}{name}") for name in ("id", "title", "updated"))
    ids = [entry.findtext(f"{ATOM}id") for entry in entries]
    assert len(set(ids)) == len(ids)
