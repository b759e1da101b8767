"""Shared text functions, templates and the registry of protocols."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols import PROTOCOLS, UnknownProtocol, load_protocol
from harness.protocols.base import CommandResult, Gap, Parsed, ScreenView
from harness.protocols.reply_text import (
    cut_middle,
    first_balanced_object,
    key_name,
    render_view,
    shorten,
    shorten_gap,
    warning_sentences,
)
from harness.protocols.templates import BrokenPrompt
from harness.terminal.plain_text import PlainText

# -- cut_middle ----------------------------------------------------------------------------------


def test_text_within_the_limit_stays_as_it_is() -> None:
    assert cut_middle("é" * 5_000) == "é" * 5_000


def test_long_text_keeps_both_halves_and_says_how_much_is_missing() -> None:
    cut = cut_middle("a" * 6_000 + "b" * 6_000)
    assert cut == "a" * 5_000 + "\n[... 2000 bytes left out ...]\n" + "b" * 5_000


def test_characters_are_never_split() -> None:
    assert cut_middle("€" * 10, 10) == "€\n[... 24 bytes left out ...]\n€"


@given(st.text(st.characters(exclude_categories=[])), st.integers(0, 50))
def test_cut_text_has_both_ends_and_the_size_it_says(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    if cut == text:
        return
    head, _, rest = cut.partition("\n[... ")
    count, _, tail = rest.partition(" bytes left out ...]\n")
    if "[..." not in text:
        assert len(head.encode()) + len(tail.encode()) + int(count) == len(text.encode("utf-8", "replace"))
        assert len(head.encode()) + len(tail.encode()) <= limit


def test_what_is_too_long_is_shortened_to_its_ends() -> None:
    assert shorten("a" * 10, 10) is None
    assert shorten("aaaaaa日bbbbbb", 10) == Gap("aaaaa", "bbbbb", 5, 3)
    assert shorten("", 0) is None


def test_a_gap_is_widened_where_its_ends_are_too_long() -> None:
    gap = Gap("aaaaa日", "bbbbbb", 100, 50)
    assert shorten_gap(gap, 14) == gap
    assert shorten_gap(gap, 10) == Gap("aaaaa", "bbbbb", 104, 52)
    assert shorten_gap(Gap("a", "b" * 20, 100, 50), 10) == Gap("a", "bbbbb", 115, 65)


# -- first_balanced_object -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", "{}"),
        ("x {} {}", "{}"),
        ('{"a": "}"}', '{"a": "}"}'),
        (r'{"a": "\"}"} }', r'{"a": "\"}"}'),
        (r'{"a": "\\"} }', r'{"a": "\\"}'),
        ('it\'s "quoted" {"a": {"b": [{}]}} z', '{"a": {"b": [{}]}}'),
        ("no object", None),
        ("}{", None),
        ('{"a": "', None),
        ('{"a": "\\', None),
        ("{ {}", None),
    ],
)
def test_first_balanced_object(text: str, found: str | None) -> None:
    span = first_balanced_object(text)
    assert (text[slice(*span)] if span else None) == found


# -- key_name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("C-c", "C-c"),
        ("c-c", "C-c"),
        ("C-C", "C-c"),
        ("^C", "C-c"),
        ("^[", "C-["),
        ("C-\\", "C-\\"),
        ("C-@", "C-@"),
        ("M-x", "M-x"),
        ("M-X", "M-X"),
        ("C-M-x", "C-M-x"),
        ("S-Up", "S-Up"),
        ("C-Space", "C-Space"),
        ("C--", "C--"),
        ("Enter", "Enter"),
        ("enter", "Enter"),
        ("ESCAPE", "Escape"),
        ("BTab", "BTab"),
        ("PgUp", "PgUp"),
        ("NPage", "NPage"),
        ("F12", "F12"),
        ("DC", "DC"),
        ("", None),
        ("^", None),
        ("a", None),
        ("C-", None),
        ("S-", None),
        ("C-$", None),
        ("C-é", None),
        ("F13", None),
        ("Esc", None),
        ("Return", None),
        ("0x41", None),
        ("Any", None),
        ("C-c\n", None),
        (" C-c", None),
        ("C-cc", None),
        ("C-" * 500_000, None),
    ],
)
def test_a_whole_string_that_names_a_tmux_key_is_that_key(text: str, key: str | None) -> None:
    assert key_name(text) == key


# -- render_view, surrogates, warnings ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (ScreenView("scr", "new"), ("New terminal output:", "new")),
        (ScreenView("scr", None), ("Current terminal screen:", "scr")),
        (ScreenView("scr", " \n"), ("No new terminal output. Current terminal screen:", "scr")),
        (ScreenView("scr", "new", 7), ("New terminal output (7 lines in its middle left out):", "new")),
        (CommandResult("out", 0), ("New terminal output:", "out")),
    ],
)
def test_a_view_is_shown_with_a_heading_that_says_what_it_is(
    view: ScreenView | CommandResult, shown: tuple[str, str]
) -> None:
    assert render_view(view) == shown


# -- one number for all that is left out ---------------------------------------------------------

printed = st.lists(st.sampled_from(["a", "é", "日", "e\u0301", "\n", "many words, "]), max_size=60).map("".join)
GAPS = {
    "bash-block": r"<output>\n(.*)\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n(.*)\n</output>",
    "thinking-bash": r"printed:\n(.*)\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n(.*)\n\nContinue",
    "bash-tool": r"chars\) ----\n(.*)\n---- (\d+) chars elided ----\n---- TAIL \(\d+ chars\) ----\n(.*)\n\n\(exit_code",
}


def result_of(text: str, limit_bytes: int) -> CommandResult:
    kept = PlainText(limit_bytes)
    kept.append(f"\x1b[31m{text}\x1b[0m".encode())
    captured = kept.finish()
    return CommandResult(captured.text, 0, gap=captured.gap)


@pytest.mark.parametrize("name", GAPS)
@given(printed, st.integers(20, 200), st.integers(20, 300))
def test_what_is_shown_and_the_number_in_its_middle_are_the_whole_output(
    name: str, text: str, kept_bytes: int, shown_bytes: int
) -> None:
    text += "the end"
    view = result_of(text + "\n", kept_bytes)
    message = load_protocol(name, None, shown_bytes).respond(Parsed(), view, claimed=False).message
    gap = re.search(GAPS[name], message, re.DOTALL)
    assert len(re.findall("left out ...]|elided ----", message)) == bool(gap) == ("too long" in message)
    if gap is None:
        assert text.strip() in message
    else:
        shown = gap[1] + gap[3]
        measured = (len(text), len(shown)) if name == "bash-tool" else (len(text.encode()), len(shown.encode()))
        assert measured[0] == measured[1] + int(gap[2])


@given(printed, st.integers(0, 200), st.integers(0, 300))
def test_seen_output_and_the_number_in_its_middle_are_the_whole_output(
    text: str, kept_bytes: int, shown_bytes: int
) -> None:
    _, shown = render_view(result_of(text, kept_bytes), shown_bytes)
    head, *gaps = re.split(r"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", shown)
    if not gaps:
        assert shown == text
        return
    number, tail = gaps
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(text.encode()) == len(head.encode()) + int(number) + len(tail.encode())


def test_a_long_list_of_warnings_is_shortened() -> None:
    sentences = warning_sentences(tuple(f"kind: Sentence {n}: x." for n in range(12)))
    assert sentences[0] == "Sentence 0: x."
    assert sentences[10:] == ["... and 2 more."]


# -- registry and prompt files -------------------------------------------------------------------


def test_an_unknown_protocol_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownProtocol, match=r"'nope'.*keystrokes-json, .*, thinking-bash"):
        load_protocol("nope")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_are_known_by_their_own_name_and_have_a_stable_hash(name: str) -> None:
    protocol = load_protocol(name)
    assert protocol.name == name
    assert len(protocol.prompt_hash) == 64
    assert protocol.prompt_hash == load_protocol(name).prompt_hash


def test_every_protocol_has_its_own_prompt() -> None:
    assert len({load_protocol(name).prompt_hash for name in PROTOCOLS}) == len(PROTOCOLS)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_task_text_is_never_read_as_a_template(name: str) -> None:
    messages = load_protocol(name).first_messages("Print {{ 1 + 1 }} {% raw %}\udc80", "$ {{ x }}")
    assert "Print {{ 1 + 1 }} {% raw %}\ufffd" in messages[-1].content
    assert "$ {{ x }}" in messages[-1].content


@pytest.mark.parametrize("name", ["bash-block", "bash-tool"])
def test_the_prompt_says_the_limit_in_use(name: str) -> None:
    assert "Output of more than 10,000 bytes" in load_protocol(name).first_messages("x", "")[1].content
    assert "Output of more than 500 bytes" in load_protocol(name, None, 500).first_messages("x", "")[1].content


@pytest.mark.parametrize("name", PROTOCOLS)
def test_observations_are_cut_to_the_limit_in_use(name: str) -> None:
    protocol = load_protocol(name, None, 100)
    for view in (CommandResult("x" * 500, 0), ScreenView("", "x" * 500)):
        assert "x" * 50 + "\n" in protocol.respond(Parsed(), view, claimed=False).message
        assert "x" * 51 not in protocol.respond(Parsed(), view, claimed=False).message


def prompt_file(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "mine.jinja"
    path.write_text(source)
    return path


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_prompt_file_replaces_the_blocks_it_defines(name: str, tmp_path: Path) -> None:
    path = prompt_file(tmp_path, "Notes on it.\n{% block task %}\nTask: {{ instruction }}\n{% endblock %}\n")
    changed, shipped = load_protocol(name, path), load_protocol(name)
    assert changed.first_messages("do it", "$")[-1].content == "Task: do it"
    assert changed.complain("bad", None) == shipped.complain("bad", None)
    assert changed.prompt_hash != shipped.prompt_hash


def test_the_hash_follows_the_prompt_file(tmp_path: Path) -> None:
    hashes = {
        load_protocol("bash-block", prompt_file(tmp_path, "{% block system %}" + text + "{% endblock %}")).prompt_hash
        for text in ("a", "b", "b")
    }
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("source", "line", "problem"),
    [
        ("{% block task %}\n\n{{ instructoin }}\n{% endblock %}", 3, "unknown variable 'instructoin'"),
        ("{% block task %}\n{% if x %}{% endif %}{% endblock %}", 2, "unknown variable 'x'"),
        ("\n{% block tsak %}{% endblock %}", 2, "unknown block 'tsak'"),
        ("{% block task %}\n{% if %}{% endblock %}", 2, "Expected an expression"),
        ("{% block task %}\n\n\n{{ instruction.nope }}{% endblock %}", 4, "has no attribute 'nope'"),
        ("{% block task %}\n{{ 1 / 0 }}{% endblock %}", 2, "division by zero"),
        ("{% block task %}\n{{ instruction|nofilter }}{% endblock %}", 2, "nofilter"),
        ("{% block task %}\n{{ ''.__class__.__mro__ }}{% endblock %}", 2, "unsafe"),
        ("just text", None, "defines no block"),
    ],
)
def test_a_broken_prompt_file_is_named_with_its_line(
    tmp_path: Path, source: str, line: int | None, problem: str
) -> None:
    path = prompt_file(tmp_path, source)
    with pytest.raises(BrokenPrompt) as caught:
        load_protocol("keystrokes-json", path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert problem in message
    assert "\n" not in message
    assert isinstance(caught.value, ValueError)


def test_a_prompt_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenPrompt, match=r"none\.jinja: cannot be read: No such file"):
        load_protocol("bash-block", tmp_path / "none.jinja")
    (tmp_path / "latin.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(BrokenPrompt, match=r"latin\.jinja: is not UTF-8: byte 3"):
        load_protocol("bash-block", tmp_path / "latin.jinja")


def test_loops_macros_and_functions_of_jinja_work_in_a_prompt_file(tmp_path: Path) -> None:
    source = (
        "{% block observation %}{% for w in warnings %}{{ loop.index }}{{ w }}{% endfor %}"
        "{% for n in range(2) %}{{ n }}{% endfor %}{{ output }}{% endblock %}"
    )
    protocol = load_protocol("keystrokes-json", prompt_file(tmp_path, source))
    parsed = protocol.parse('{"analysis": "", "plan": "", "commands": [], "x": 1}')
    view = ScreenView("", "out")
    assert protocol.respond(parsed, view, claimed=False).message == "1Unknown fields are ignored: x.01out"
