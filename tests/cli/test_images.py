"""`--prefetch`, `--pull` and `--drop-images` on the command line, with a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from conftest import MakeTask
from fault_server import FaultServer, answer, completion
from git_mirrors import Mirror, registry, row
from lost_trials import CLAIM
from own_registry import Front, Pushed, answering, front_of, own_registry

from tbench.cli import app
from tbench.errors import UsageError
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.sandbox.image import ImageName

pytestmark = pytest.mark.engine


@pytest.fixture
def front() -> Iterator[Front]:
    with own_registry() as behind, front_of(behind) as front:
        yield front


@pytest.fixture
def image(front: Front, engine: Engine) -> Iterator[Pushed]:
    """Image that is missing on the engine."""
    pushed = front.registry.push(size=200_000)
    yield pushed
    if is_there(engine, pushed.at(front)):
        engine.api.remove_image(pushed.at(front), force=True)


def is_there(engine: Engine, name: str) -> bool:
    return asyncio.run(Images(engine).find(ImageName.parse(name).reference)) is not None


class Done(NamedTuple):
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


Tbench = Callable[..., Done]


@pytest.fixture
def tbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run a command in this process, in a new directory."""
    for name in [each for each in os.environ if each.startswith(("TBENCH_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TBENCH_SCHEDULE_CALIBRATE", "off")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **variables: str) -> Done:
        done = CliRunner().invoke(app, list(arguments), prog_name="tbench", env=variables)
        if isinstance(done.exception, UsageError):
            return Done(2, "", f"tbench: {done.exception}\n")
        return Done(done.exit_code, done.stdout, done.stderr)

    return run


def toml(image: str) -> str:
    return f'[environment]\nmemory_mb = 256\nallow_internet = false\ndocker_image = "{image}"\n'


def test_a_dry_run_says_what_is_to_be_pulled_and_how_large_it_is(
    tbench: Tbench, make_task: MakeTask, front: Front, image: Pushed
) -> None:
    tasks = str(make_task(toml=toml(image.at(front)), dockerfile=None).parent)
    said = tbench("run", tasks, "--dry-run", "--agent", "nop")
    assert "\nimages    1 to be pulled: small-task\n" in said.stdout
    assert "\ndisk      1 image to be pulled; 0.2 MB, about 0.5 MB on the disk" in said.stdout
    asked = len(front.seen)
    said = tbench("run", tasks, "--dry-run", "--agent", "nop", "--pull", "never")
    assert "\nimages    1 unavailable: small-task\n" in said.stdout and "\ndisk" not in said.stdout
    said = tbench("run", tasks, "--dry-run", "--agent", "nop", "--offline")
    assert "\ndisk      1 image to be pulled; size unknown" in said.stdout and len(front.seen) == asked


def test_a_run_gets_its_images_first_and_drops_them_at_the_end(
    tbench: Tbench, tmp_path: Path, make_task: MakeTask, front: Front, image: Pushed, engine: Engine
) -> None:
    make_task("good", toml=toml(image.at(front, pinned=True)), dockerfile=None)
    bad = make_task("bad", toml=toml(f"{front.address}/lab/none:1"), dockerfile=None)
    front.fault("/lab/none/", answering(401))
    done = tbench("run", str(bad.parent), "--agent", "nop", "-o", "run", "--prefetch", "--drop-images")
    lines = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    shown = ImageName.parse(image.at(front, pinned=True)).display_name
    first = next(index for index, line in enumerate(lines) if " seed 0" in line)
    assert any(line.startswith(f"good: pulled {shown}: 0.2 MB in ") for line in lines[:first])
    assert any(line.startswith("bad has no image: image_denied: ") for line in lines[:first])
    assert "images: 1 of 2 available" in lines[:first]
    assert "1 image removed, up to 0.2 MB" in lines
    assert not is_there(engine, image.at(front, pinned=True))
    results = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert {each["task"]: (each["error"] or {}).get("type") for each in results}["bad"] == "image_denied"
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    origin = next(task["image_origin"] for task in document["tasks"] if task["name"] == "good")
    assert (origin["how"], origin["digest"]) == ("pulled", image.digest)


def test_images_are_dropped_after_the_last_of_several_models(
    tbench: Tbench, tmp_path: Path, make_task: MakeTask, front: Front, image: Pushed, engine: Engine
) -> None:
    task = make_task("good", toml=toml(image.at(front)), dockerfile=None)
    models = ["-m", "a", "-m", "b"]
    with contextlib.closing(FaultServer()) as endpoint:
        endpoint.always_list(*({"id": name, "max_model_len": 32768} for name in models[1::2]))
        endpoint.answer_by(lambda _: answer(200, completion(CLAIM)))
        at = ["--base-url", endpoint.base_url, *models, "--verify", "shared"]
        done = tbench("run", str(task), *at, "-o", "all", "--drop-images")
    assert done.returncode == 3, "nothing can run in this image"
    assert done.stderr.count(": pulled ") == done.stderr.count(" removed, up to ") == 1
    assert done.stderr.index("model 2 of 2") < done.stderr.index("1 image removed, up to 0.2 MB")
    assert not is_there(engine, image.at(front))


def test_what_has_no_effect_is_refused(tbench: Tbench, make_task: MakeTask) -> None:
    done = tbench("run", str(make_task().parent), "--agent", "nop", "--build", "--pull", "always")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tbench: --pull always: has no effect with --build, which pulls nothing; ")
    beside = {"TBENCH_SANDBOX_PULL": "always"}
    done = tbench("run", str(make_task().parent), "--agent", "nop", "--build", "--dry-run", **beside)
    assert done.returncode == 0, "of a file or the environment, the flag wins"
    done = tbench("dataset", "pull", "terminal-bench@2.1", "-t", "x", "--pull", "never")
    assert done.returncode == 2 and done.stderr.startswith("tbench: --task, --pull: no effect")


def test_the_images_of_a_dataset_are_got_without_a_run(
    tbench: Tbench, tmp_path: Path, front: Front, image: Pushed, engine: Engine
) -> None:
    mirror = Mirror(tmp_path / "mirrors")
    mirror.task("good", task=toml(image.at(front)))
    mirror.task("lacking", task=toml(f"{front.address}/lab/none:1"))
    shutil.rmtree(mirror.work / "tasks" / "lacking" / "environment")
    mirror.publish()
    mirror.commit()
    place = registry(tmp_path / "registry.json", row("made-up", "1.0", mirror, mirror.head, ["good", "lacking"]))
    given = {"TBENCH_TASKS_REGISTRY": str(place), "TBENCH_CACHE": str(tmp_path / "cache")}
    pull = ("dataset", "pull", "made-up")
    assert tbench(*pull, **given).returncode == 0 and not is_there(engine, image.at(front))
    done = tbench(*pull, "--prefetch", "-t", "good", "--engine", f"oci:{tmp_path / 'store'}", **given)
    assert done.returncode == 2 and done.stderr.startswith("tbench: --prefetch: ")
    done = tbench(*pull, "--prefetch", "-t", "good", **given)
    assert done.returncode == 0 and done.stdout.startswith(str(tmp_path / "cache"))
    assert "good: pulled" in done.stderr and done.stderr.endswith("images: 1 of 1 available\n")
    assert is_there(engine, image.at(front))
    done = tbench(*pull, "--prefetch", **given)
    assert done.returncode == 2 and "lacking has no image: image_unavailable: " in done.stderr
    assert done.stderr.endswith("images: 1 of 2 available\n")
