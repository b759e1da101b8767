"""What has moved between two runs: settings, server, images, prompts, thinking, paces, load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_trees import a_result, write_run

from harness.model import ServedModel
from harness.reply_stats import ReplyStats
from harness.trajectory import Message, Reply, Step, Trajectory, Usage
from tbench.explaining.sameness import Moved, moved_facts, other_image, see_thinking
from tbench.explaining.trials import read_side
from tbench.results import HostSample, ImageOrigin, Timings, TrialResult
from tbench.storage.run_files import trial_directory
from tbench.storage.run_store import StepLog, write_trial

TASKS = ("one", "two", "three", "four")
OWN = {"agent": "tbench:keystrokes-json", "prompt_hash": "p"}


def a_run(
    folder: Path, name: str, seeds: Sequence[int] = (0, 1, 2), results: dict[str, Any] | None = None, **settings: Any
) -> Path:
    found = [a_result(task, seed, 1.0, **(results or {})) for task in TASKS for seed in seeds]
    return write_run(folder / name, found, dict.fromkeys(TASKS, "h"), seeds, **{**OWN, **settings})


def moved(old: Path, new: Path) -> dict[str, Moved]:
    first, second = read_side([old]), read_side([new])
    images = [task for task in TASKS if other_image(first, second, task)]
    return {each.key: each for each in moved_facts(first, second, TASKS, images)}


def test_equal_runs_have_not_moved(tmp_path: Path) -> None:
    assert moved(a_run(tmp_path, "a"), a_run(tmp_path, "b")) == {}


@pytest.mark.parametrize(
    ("settings", "key", "party", "separable"),
    [
        ({"temperature": 0.2}, "model.temperature", "harness", False),
        ({"max_tokens": 4096}, "model.max_tokens", "harness", True),
        ({"request_timeout_sec": 30.0}, "model.request_timeout_sec", "harness", True),
        ({"prompt_hash": "q"}, "agent.prompt", "harness", False),
        ({"model": "n"}, "model.name", "model", True),
        ({"served": ServedModel(id="m", context_tokens=16384, root="/w")}, "server.max_model_len", "server", True),
        ({"served": ServedModel(id="m", context_tokens=32768, root="/v")}, "model.root", "model", True),
    ],
)  # fmt: skip
def test_what_moved_is_named_with_its_party(
    tmp_path: Path, settings: dict[str, Any], key: str, party: str, separable: bool
) -> None:
    known = {"served": ServedModel(id="m", context_tokens=32768, root="/w")}
    found = moved(a_run(tmp_path, "a", **known), a_run(tmp_path, "b", **{**known, **settings}))
    assert list(found) == [key]
    assert (found[key].party, found[key].is_separable, "→" in found[key].words) == (party, separable, True)


def test_seeds_and_concurrency_are_for_information(tmp_path: Path) -> None:
    found = moved(a_run(tmp_path, "a"), a_run(tmp_path, "b", seeds=(3, 4, 5), concurrency=9))
    assert {key: each.explains for key, each in found.items()} == {"schedule.concurrency": False, "seeds": False}
    assert found["seeds"].words == "0 to 2 → 3 to 5"


def test_another_image_is_one_with_other_content(tmp_path: Path) -> None:
    def image(digest: str | None, built: str | None, image_id: str) -> dict[str, Any]:
        origin = ImageOrigin(how="present", reference="r", digest=digest, built_from=built)
        return {"image_origin": origin, "image_id": image_id}

    plain = a_run(tmp_path, "a", results=image("d", None, "1"))
    assert "image" not in moved(plain, a_run(tmp_path, "b", results=image("d", None, "2")))
    assert moved(plain, a_run(tmp_path, "c", results=image("e", None, "1")))["image"].words.startswith("4 tasks of 4")
    built = a_run(tmp_path, "d", results=image(None, "x", "1"))
    assert "image" in moved(built, a_run(tmp_path, "e", results=image(None, "x", "2")))
    assert "image" in moved(built, a_run(tmp_path, "f", results=image(None, "y", "1")))


def test_names_in_replies_that_only_one_run_has(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        run = a_run(tmp_path, name)
        seen = ReplyStats(total=9, models={"m": 9}, fingerprints={f"vllm-{name}": 9})
        text = (run / "run.json").read_text().replace('"replies": null', f'"replies": {seen.model_dump_json()}')
        (run / "run.json").write_text(text)
        runs.append(run)
    found = moved(*runs)
    assert list(found) == ["server.fingerprint"]
    assert not found["server.fingerprint"].is_separable


def test_a_slower_server_and_a_loaded_machine(tmp_path: Path) -> None:
    fast = {"usage": Usage(completion_tokens=1000), "timings": Timings(model_sec=10.0, command_sec=7.0)}
    slow = {"usage": Usage(completion_tokens=1000), "timings": Timings(model_sec=30.0, command_sec=21.0)}
    seeds = range(6)
    calm = a_run(tmp_path, "a", seeds=seeds, results=fast)
    found = moved(calm, a_run(tmp_path, "b", seeds=seeds, results=slow))
    assert list(found) == ["server.pace", "machine.pace"]
    pressed = a_run(tmp_path, "c", seeds=seeds, results={**fast, "host": HostSample(load_max=4.0)})
    assert moved(calm, pressed)["machine.load"].party == "machine"


def thinking_steps(*prompts: int, reply: int = 400) -> list[Step]:
    return [
        Step(
            index=at,
            reply=Reply(content="x", reasoning="thinking", usage=Usage(prompt_tokens=prompt, completion_tokens=reply)),
        )
        for at, prompt in enumerate(prompts, start=1)
    ]


def test_a_prompt_that_grew_by_less_than_the_reply_lacks_thinking() -> None:
    assert see_thinking(thinking_steps(1000, 1600, 2200)).dropped_at is None
    dropped = see_thinking(thinking_steps(1000, 1600, 1900))
    assert (dropped.dropped_at, dropped.thinking, dropped.replies) == (3, 3, 3)
    assert "grew by 300 tokens after a reply of 400" in dropped.words


def test_thinking_that_began_in_the_prompt_is_seen_by_its_end() -> None:
    steps = [Step(index=1, reply=Reply(content='The task is easy.\n</think>\n\n{"analysis": ""}'))]
    assert see_thinking(steps).thinking == 1
    assert see_thinking([Step(index=1, reply=Reply(content='{"analysis": "</div>"}'))]).thinking == 0


def test_a_shortened_history_or_uncounted_replies_prove_nothing() -> None:
    compacted = thinking_steps(1000, 1100)
    compacted[1] = compacted[1].model_copy(update={"warnings": ("context_compacted: shortened",)})
    assert see_thinking(compacted).dropped_at is None
    assert see_thinking(thinking_steps(0, 0)).dropped_at is None
    assert see_thinking(thinking_steps(5000, 1000)).dropped_at is None


def store_steps(run: Path, steps: Sequence[Step], messages: Sequence[Message] = ()) -> None:
    for task in TASKS:
        for seed in (0, 1, 2):
            directory = trial_directory(run, task, seed)
            log = StepLog(directory)
            for step in steps:
                log.append(step)
            log.close()
            result: TrialResult = a_result(task, seed, 1.0)
            write_trial(directory, result, Trajectory(protocol="p", messages=tuple(messages), steps=tuple(steps)), {})


def test_thinking_that_is_dropped_or_missing_in_one_run_only(tmp_path: Path) -> None:
    kept, dropped, none = (a_run(tmp_path, name) for name in ("kept", "dropped", "none"))
    store_steps(kept, thinking_steps(1000, 1600, 2200))
    store_steps(dropped, thinking_steps(1000, 1300, 1600))
    store_steps(none, [step.model_copy(update={"reply": Reply(content="x")}) for step in thinking_steps(1, 2)])
    assert moved(kept, dropped)["server.thinking"].words.startswith(
        "trials whose prompts lack earlier thinking: 0 → 100 %"
    )
    assert moved(kept, none)["server.thinking"].words == "replies with thinking: 100 → 0 %"


def test_first_requests_are_compared_without_what_always_varies(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, name) for name in "abc"]
    for run, text in zip(runs, ("Do it at 10:31:07.", "Do it at 23:01:44.", "Do it well."), strict=True):
        store_steps(run, (), [Message(role="user", content=text), Message(role="assistant", content=text * 3)])
    assert "prompts" not in moved(runs[0], runs[1])
    found = moved(runs[0], runs[2])["prompts"]
    assert (found.words.startswith("the first request of 4 tasks of 4"), found.is_separable) == (True, False)


def test_equal_messages_with_prompts_of_other_lengths_show_another_template(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, name) for name in "abc"]
    asked = [Message(role="user", content="Do it."), Message(role="assistant", content="x")]
    for run, tokens in zip(runs, (1000, 1000, 1012), strict=True):
        store_steps(run, thinking_steps(tokens), asked)
    assert "server.template" not in moved(runs[0], runs[1])
    found = moved(runs[0], runs[2])["server.template"]
    assert "1,000 → 1,012 tokens at " in found.words and found.words.endswith("and others at 3 tasks")
    assert (found.party, found.is_separable) == ("server", False)
    other = a_run(tmp_path, "d", model="another")
    store_steps(other, thinking_steps(1012), asked)
    assert "server.template" not in moved(runs[0], other)
