"""The feed of alarms: valid Atom, one entry each for the start and the end of an alarm, and stable ids."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from site_series import HOSTILE, a_site, dropped, usual, write_drop, write_night

from reports.site import series

ATOM = "{http://www.w3.org/2005/Atom}"
ID = re.compile(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def entries(folder: Path) -> list[dict[str, str]]:
    """Return the text of each entry's elements, and the target of its link."""
    found = []
    for entry in read(folder).findall(f"{ATOM}entry"):
        known = {child.tag.removeprefix(ATOM): child.text or child.get("href") or child.get("term") for child in entry}
        found.append({name: str(text) for name, text in known.items()})
    return found


def read(folder: Path) -> ElementTree.Element:
    with a_site(folder) as site:
        return ElementTree.fromstring(series.render_feed(site))


def test_the_feed_has_what_atom_asks_for(tmp_path: Path) -> None:
    root = read(write_drop(tmp_path))
    assert root.tag == f"{ATOM}feed"
    (own_id, updated) = (root.findtext(f"{ATOM}{name}") or "" for name in ("id", "updated"))
    assert ID.fullmatch(own_id)
    assert TIME.fullmatch(updated)
    assert root.findtext(f"{ATOM}title") == "tbench: alarms"
    assert root.findtext(f"{ATOM}author/{ATOM}name") == "tbench"
    links = {link.get("rel"): link.get("href") for link in root.findall(f"{ATOM}link")}
    assert links == {"self": "feed.xml", "alternate": "index.html"}
    for entry in root.findall(f"{ATOM}entry"):
        assert ID.fullmatch(entry.findtext(f"{ATOM}id") or "")
        assert TIME.fullmatch(entry.findtext(f"{ATOM}updated") or "")
        assert entry.findtext(f"{ATOM}title")


def test_an_alarm_is_one_entry_however_long_it_stands(tmp_path: Path) -> None:
    (entry,) = entries(write_drop(tmp_path, dropped_nights=6))
    assert entry["title"] == "m: lower since 2026-01-13"
    assert entry["updated"] == "2026-01-14T22:00:00.000Z"
    assert entry["link"] == "nights/2026-01-14.html"
    assert entry["category"] == "alarm"
    assert "gate: alarm: the score dropped by 41.7 ± 6.3 points since 13 Jan 2026" in entry["summary"]


def test_the_end_of_an_alarm_is_an_entry_of_its_own(tmp_path: Path) -> None:
    over, alarm = entries(write_drop(tmp_path, back=4))
    assert over["title"] == "m: the alarm of 2026-01-14 is over"
    assert over["category"] == "over"
    assert over["link"] == "nights/2026-01-18.html"
    assert over["id"] != alarm["id"]


def test_an_alarm_has_the_same_id_the_day_after_and_wherever_the_runs_lie(tmp_path: Path) -> None:
    (before,) = entries(write_drop(tmp_path / "here"))
    write_drop(tmp_path / "there")
    write_night(tmp_path / "there", 17, dropped(17))
    (after,) = entries(tmp_path / "there")
    assert before == after


def test_an_alarm_of_settings_that_were_changed_since_stays(tmp_path: Path) -> None:
    (before,) = entries(write_drop(tmp_path))
    for number in range(17, 20):
        write_night(tmp_path, number, usual(number), model="m", temperature=0.1)
    assert before in entries(tmp_path)


def test_without_an_alarm_the_feed_is_as_new_as_the_last_run(tmp_path: Path) -> None:
    root = read(write_drop(tmp_path, usual_nights=2, dropped_nights=0))
    assert root.findtext(f"{ATOM}updated") == "2026-01-02T22:00:00.000Z"
    assert root.findall(f"{ATOM}entry") == []


def test_without_any_run_it_is_sound_all_the_same(tmp_path: Path) -> None:
    assert ID.fullmatch(read(tmp_path).findtext(f"{ATOM}id") or "")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    (entry,) = entries(write_drop(tmp_path, model=HOSTILE))
    assert "<script>alert('x')</script>" in entry["title"]
    assert "\x1b" not in entry["title"]
