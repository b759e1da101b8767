"""replay build: turns that become records, content of records, and messages on the rest."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.cli.proxies.replay import build as build_command
from tbench.errors import UsageError
from tbench.proxies.datasets.build import BuildReport, build, select_dev_tasks
from tbench.proxies.datasets.conversations import read_all
from tbench.proxies.datasets.records import (
    Inclusion,
    RecordedConversation,
    Turn,
    command_units,
    make_records,
    read_dataset,
    read_reference,
)

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "replay"
KEYS = [
    "task_id", "sample_idx", "step_idx", "total_steps", "is_final_step", "source", "source_group", "prompt", "messages",
    "ref_raw", "ref_parse_ok", "ref_analysis", "ref_plan", "ref_task_complete", "ref_commands", "ref_command_units",
]  # fmt: skip


def answer(*keystrokes: str, **more: Any) -> str:
    commands = [{"keystrokes": text, "duration": 0.1} for text in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, **more})


LS = answer("ls\n")


def talk(*contents: Any, source: str = "corpus/medium/debugging") -> dict[str, Any]:
    """User and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return {"_source_file": source, "conversations": messages}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def made(tmp_path: Path, *lines: Any, **options: Any) -> tuple[BuildReport, list[dict[str, Any]]]:
    built = build([write(tmp_path / "in.jsonl", *lines)], tmp_path / "out.jsonl", **options)
    return built, [json.loads(line) for line in built.path.read_text(encoding="utf-8").splitlines()]


def steps(*turns: tuple[Any, Any], include: Inclusion | None = None) -> tuple[list[dict[str, Any]], Counter[str]]:
    dropped: Counter[str] = Counter()
    conversation = RecordedConversation(tuple(Turn(role, content) for role, content in turns))
    return list(make_records(conversation, 0, include or Inclusion(), dropped)), dropped


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample records are not here")
def test_a_published_record_comes_out_of_its_conversation_byte_by_byte(tmp_path: Path) -> None:
    (line,) = (SAMPLES / "record_sample.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    messages = [*record["messages"], {"role": "assistant", "content": record["ref_raw"]}]
    later = [{"role": role, "content": "later"} for _ in range(4) for role in ("user", "assistant")]
    conversation = {"_source_file": record["source"], "conversations": messages + later}
    built = build([write(tmp_path / "in.jsonl", *[""] * record["sample_idx"], conversation)], tmp_path / "out.jsonl")
    assert built.path.read_text(encoding="utf-8") == line + "\n"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample manifest is not here")
def test_the_manifest_begins_with_the_published_keys(tmp_path: Path) -> None:
    published = json.loads((SAMPLES / "task_manifest.json").read_text())
    built, _ = made(tmp_path, talk("do", LS))
    manifest = json.loads(built.manifest_path.read_text())
    assert list(manifest)[: len(published)] == list(published)
    assert {key: type(manifest[key]) for key in published} == {key: type(value) for key, value in published.items()}


def test_a_record_has_its_keys_in_order_and_the_dataset_can_be_read(tmp_path: Path) -> None:
    built, (first, second) = made(tmp_path, talk("do", LS, "file", answer("cat file\n", task_complete=True)))
    assert list(first) == list(second) == KEYS
    assert second["messages"] == [
        {"role": "user", "content": "do"},
        {"role": "assistant", "content": LS},
        {"role": "user", "content": "file"},
    ]
    assert second["prompt"] == f"USER:\ndo\n\nASSISTANT:\n{LS}\n\nUSER:\nfile"
    assert (first["is_final_step"], second["is_final_step"], second["ref_task_complete"]) == (False, True, True)
    assert second["ref_command_units"] == ["cat file"]
    assert first["source_group"] == "debugging"
    dataset = read_dataset(built.path)
    assert (len(dataset.records), dataset.problems, dataset.sha256) == (2, (), built.sha256)


def test_thinking_stays_in_the_history_and_in_the_reference(tmp_path: Path) -> None:
    thought = f"<think>\nhm\n</think>\n\n{LS}"
    _, (first, second) = made(tmp_path, talk("do", thought, "x", answer("pwd\n")))
    assert first["ref_raw"] == second["messages"][1]["content"] == thought


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("I look around.", "reference_invalid"),
        ("[1]", "reference_invalid"),
        ("{}", "reference_invalid"),
        ("null", "reference_invalid"),
        ("{" * 5000, "reference_invalid"),
        (f"<think>{{}}</think>{LS}", "reference_invalid"),
        (answer(), "reference_without_commands"),
        ('{"analysis": "", "commands": "ls"}', "reference_without_commands"),
    ],
)
def test_a_reference_that_asks_for_nothing_is_no_step_but_history(bad: str, reason: str) -> None:
    turns = (("user", "do"), ("assistant", bad), ("user", "again"), ("assistant", LS))
    (record,), dropped = steps(*turns)
    assert dropped == {reason: 1}
    assert (record["step_idx"], record["total_steps"]) == (1, 2)
    assert record["messages"][1]["content"] == bad
    kept, _ = steps(*turns, include=Inclusion(invalid=True, empty=True))
    assert [each["step_idx"] for each in kept] == [0, 1]
    assert kept[0]["ref_command_units"] == []


def test_a_turn_before_any_context_is_not_counted_and_not_history() -> None:
    (record,), dropped = steps(("assistant", LS), ("user", "do"), ("assistant", answer("pwd\n")))
    assert dropped == {"before_any_context": 1}
    assert (record["step_idx"], record["total_steps"], len(record["messages"])) == (0, 2, 1)


def test_messages_of_other_roles_or_without_text_are_ignored() -> None:
    odd = [("developer", "x"), ("user", None), ("user", [{"type": "text"}]), (["user"], "x"), (None, None)]
    (record,), dropped = steps(("system", "s"), *odd, ("tool", "t"), ("assistant", LS))
    assert [message["role"] for message in record["messages"]] == ["system", "tool"]
    assert dropped == {"message_ignored": len(odd)}


def test_units_are_lines_and_a_command_without_any_waits() -> None:
    commands = [
        {"keystrokes": "cat <<E\r\n  a b \n\nE\n"}, {"keystrokes": ""}, {}, "ls",
        {"keystrokes": None}, {"keystrokes": 5},
    ]  # fmt: skip
    assert command_units(commands) == ["cat <<E", "a b", "E", "<WAIT>", "<WAIT>", "<WAIT>", "5"]


@given(st.text(alphabet='{}[]":,\\nultre0-9'))
def test_any_text_can_be_a_reference(text: str) -> None:
    assert isinstance(read_reference(text), dict)


# -- where conversations come from ------------------------------------------------------------------


def test_both_spellings_of_a_conversation_are_the_same(tmp_path: Path) -> None:
    other = {
        "messages": [{"from": "human", "value": "do"}, {"from": "gpt", "value": LS}],
        "source": "corpus/medium/debugging",
    }
    _, (first, second) = made(tmp_path, talk("do", LS), other)
    ids = ("task_id", "sample_idx")
    assert {key: first[key] for key in first if key not in ids} == {
        key: second[key] for key in second if key not in ids
    }
    assert second["task_id"] == "task-001"


def test_bad_lines_are_reported_by_number_and_keep_their_place(tmp_path: Path) -> None:
    bad = ['{"messages": [', {"messages": []}, "", {"text": "x"}, "[1, 2]", "7"]
    built, records = made(tmp_path, *bad, talk("do", LS), "[" * 20_000)
    assert [record["task_id"] for record in records] == ["task-006"]
    assert [line.partition(": ")[0].rpartition(":")[2] for line in built.problems] == ["1", "2", "4", "6", "8"]
    assert any(":5: none of its steps" in note for note in built.notes)
    manifest = json.loads(built.manifest_path.read_text())
    assert manifest["unusable"] == 5 and manifest["problems"] == built.problems


def test_tool_calls_are_refused_with_the_reason(tmp_path: Path) -> None:
    called = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{}]}]}
    built, _ = made(tmp_path, called, talk("do", LS))
    assert "replies are tool calls" in built.problems[0]


@pytest.mark.parametrize("content", ["", "\n\n", "nothing", '{"messages": []}'])
def test_a_file_with_nothing_in_it_is_one_line_and_leaves_no_files(tmp_path: Path, content: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(content)
    with pytest.raises(UsageError, match=r"^nothing to replay in 1 files"):
        build([source], tmp_path / "out.jsonl", dev=3)
    assert list(tmp_path.iterdir()) == [source]


def test_a_missing_file_and_a_directory_without_trajectories_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.jsonl: No such file"):
        build([tmp_path / "absent.jsonl"], tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match=r"contains no trajectory\.json"):
        build([tmp_path], tmp_path / "out.jsonl")


def test_lone_surrogates_and_broken_bytes_become_valid_utf8(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    escaped = json.dumps(talk("do \ud83d", answer("echo \\ud83d\\ude00 \ud800\n"))).encode()
    source.write_bytes(escaped + b"\n" + json.dumps(talk("caf_", LS)).encode().replace(b"_", b"\xe9") + b"\n")
    built = build([source], tmp_path / "out.jsonl")
    first, second = (json.loads(line) for line in built.path.read_bytes().decode().splitlines())
    assert first["messages"][0]["content"] == "do \ufffd"
    assert first["ref_command_units"] == ["echo \\ud83d\\ude00 \ufffd"]
    assert second["messages"][0]["content"] == "caf\ufffd"
    assert (built.repaired, built.notes) == (1, [f"{source}:2: invalid UTF-8 was replaced by U+FFFD"])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["messages", "role", "content", "from", "value", "schema_version", "steps", "source", "message", "agent",
             "tool_calls", "observation", "results", "protocol", "extra", "name"]
        )
        | st.text(max_size=3),
        inner | st.sampled_from(["ATIF-v1.5", "agent", "user", "assistant", "terminus-2", "keystrokes-json"]),
        max_size=6,
    ),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(values, min_size=1, max_size=3))
def test_no_json_value_is_too_odd_to_be_read(tmp_path_factory: pytest.TempPathFactory, lines: list[Any]) -> None:
    path = write(tmp_path_factory.getbasetemp() / "odd.jsonl", *map(json.dumps, lines))
    for found in read_all([path], "all", []):
        assert found.conversation is not None or found.problem
        if found.conversation is not None:
            list(make_records(found.conversation, 0, Inclusion(True, True), Counter()))


# -- what is written -------------------------------------------------------------------------------


def test_the_dev_split_takes_turns_among_the_groups_and_never_more_than_there_are() -> None:
    tasks = [(f"task-{n:03d}", "ab"[n % 2]) for n in range(8)] + [("task-008", "c")]
    chosen = select_dev_tasks(tasks, 5, 42)
    groups = Counter(dict(tasks)[task] for task in chosen)
    assert groups == {"a": 2, "b": 2, "c": 1}
    assert chosen == sorted(chosen) == select_dev_tasks(tasks, 5, 42)
    assert select_dev_tasks(tasks, 100, 42) == [task for task, _ in tasks]


def test_the_dev_split_is_that_of_one_generator_and_pops_from_the_end() -> None:
    tasks = [("x0", "x"), ("x1", "x"), ("x2", "x"), ("a0", "a"), ("a1", "a"), ("a2", "a")]
    generator = random.Random(42)
    first, second = ["x0", "x1", "x2"], ["a0", "a1", "a2"]
    generator.shuffle(first)
    generator.shuffle(second)
    assert select_dev_tasks(tasks, 3, 42) == sorted([second[-1], first[-1], second[-2]])


def test_the_dev_file_holds_the_records_of_its_tasks(tmp_path: Path) -> None:
    talks = [talk("do", answer(f"echo {n}\n"), source=f"c/{'xy'[n % 2]}") for n in range(6)]
    built, records = made(tmp_path, *talks, dev=2)
    assert built.dev_path == tmp_path / "out_dev_2.jsonl"
    dev = [json.loads(line) for line in built.dev_path.read_text().splitlines()]
    assert dev == [record for record in records if record["task_id"] in built.dev_task_ids]
    assert sorted(record["source_group"] for record in dev) == ["x", "y"]
    manifest = json.loads(built.manifest_path.read_text())
    assert manifest["dev_dataset"]["sha256"] == read_dataset(built.dev_path).sha256
    assert manifest["inputs"][0]["path"] == str(tmp_path / "in.jsonl")


def test_the_command_prints_what_was_written_and_left_out(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", talk("do", LS, "x", "no json"), "nonsense")
    done = CliRunner().invoke(build_command, [str(source), "--output", str(tmp_path / "out.jsonl"), "--dev", "1"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"1 step of 1 conversation: {tmp_path / 'out.jsonl'}",
        f"1 step of 1 conversation: {tmp_path / 'out_dev_1.jsonl'}",
        f"manifest: {tmp_path / 'out.manifest.json'}",
        "1 turns left out: reference_invalid",
        "1 conversations unusable, 0 left out by --only",
    ]
    assert done.stderr.startswith(f"problem: {source}:2: not JSON (")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made(tmp_path, talk("do", LS))
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        made(tmp_path, talk("do", answer("pwd\n")))
    assert (tmp_path / "out.jsonl").read_bytes() == before
