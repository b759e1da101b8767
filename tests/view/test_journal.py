"""The events of a journal that a run appends to."""

from __future__ import annotations

from pathlib import Path

from tbench.events import EndpointPresence, Note, RunStarted
from tbench.view.journal import JournalTail


def add(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def test_each_look_gives_what_is_new_and_a_torn_line_comes_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    add(file, RunStarted(run="r", trials=2).model_dump_json() + "\n" + '{"kind":"note",')
    tail = JournalTail(file)
    assert list(tail.new_events()) == [RunStarted(run="r", trials=2)]
    assert list(tail.new_events()) == []
    add(file, '"text":"é"}\n')
    add(file, EndpointPresence(presence="away").model_dump_json() + "\n")
    assert list(tail.new_events()) == [Note(text="é"), EndpointPresence(presence="away")]
    assert tail.unread == 0


def test_lines_of_another_version_are_counted_and_the_others_read(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    add(
        file,
        '{"kind":"of tomorrow"}\n{"kind":"note","text":"x","colour":1}\nno JSON\n[]\n\n{"kind":"note","text":"y"}\n',
    )
    tail = JournalTail(file)
    assert list(tail.new_events()) == [Note(text="y")]
    assert tail.unread == 4


def test_a_journal_that_became_shorter_is_read_from_its_begin(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    add(file, '{"kind":"note","text":"a long first line"}\n')
    tail = JournalTail(file)
    assert len(list(tail.new_events())) == 1
    file.write_text('{"kind":"note","text":"b"}\n')
    assert list(tail.new_events()) == [Note(text="b")]
