"""The command line itself: imports, help, usage errors, shell completion."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
from in_process import tbench

from harness.model import Rendering
from harness.protocols import PROTOCOLS
from tbench.agents.recipe import is_recipe
from tbench.cli import SETTINGS, app
from tbench.cli.parsing.commands import Argument, LazyGroup
from tbench.cli.parsing.configured import MAX_SHOWN, SHOWS_ALL
from tbench.cli.parsing.usage_errors import error_line
from tbench.cli.run import CommandWithRetryErrors, resume, run
from tbench.config.layers import PRESETS
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.errors import KINDS
from tbench.rewards.reward_functions import Counting, Shape
from tbench.tasks.sources import tasks_dir

KILLED_RUN = Path(__file__).parents[1] / "data" / "killed-run" / "run"
MODULE = [sys.executable, "-m", "tbench"]


def groups(group: LazyGroup, name: str = "tbench") -> Iterator[tuple[str, LazyGroup]]:
    yield name, group
    for word in group.table:
        inner = group.get_command(click.Context(group), word)
        if isinstance(inner, LazyGroup):
            yield from groups(inner, f"{name} {word}")


assert isinstance(app, LazyGroup)
COMMANDS = [(f"{name} {word}", group, word) for name, group in groups(app) for word in group.table]


# -- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "word"), [pytest.param(group, word, id=name) for name, group, word in COMMANDS])
def test_the_list_of_commands_has_the_first_sentence_of_a_command_s_own_help(group: LazyGroup, word: str) -> None:
    command = group.get_command(click.Context(group), word)
    assert command is not None and command.help is not None and command.name == word
    sentence = re.match(r".+?\.(?=\s|\Z)", command.help, re.DOTALL)
    assert sentence and " ".join(sentence[0].split()) == group.table[word].help


@pytest.mark.parametrize(("group", "word"), [pytest.param(group, word, id=name) for name, group, word in COMMANDS])
def test_the_help_of_a_command_explains_each_of_its_arguments(group: LazyGroup, word: str) -> None:
    command = group.get_command(click.Context(group), word)
    assert command is not None
    context = click.Context(command, info_name=word, **SETTINGS)
    said, parameters = " ".join(command.get_help(context).split()), command.get_params(context)
    assert [each.name for each in parameters if isinstance(each, Argument) and each.about not in said] == []


def test_help_loads_no_command_and_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['tbench', '--help']\n"
        "from tbench.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stderr.split() if name.startswith(("tbench", "harness", "pydantic", "asyncio"))}
    parsing = {"tbench.cli.parsing", "tbench.cli.parsing.commands"}
    assert loaded == {"tbench", "tbench.cli", "tbench.exit_codes", *parsing}


@pytest.mark.parametrize(("group", "word"), [pytest.param(group, word, id=name) for name, group, word in COMMANDS])
def test_help_says_which_options_may_be_repeated_and_no_default_where_there_is_none(
    group: LazyGroup, word: str
) -> None:
    command = group.get_command(click.Context(group), word)
    assert command is not None
    context = click.Context(command, info_name=word, **SETTINGS)
    context.meta[SHOWS_ALL] = True
    said = " ".join(command.get_help(context).split())
    assert "UNSET" not in said and "default: None" not in said
    for option in command.get_params(context):
        if isinstance(option, click.Option) and option.multiple:
            shown = said.partition(f" {max(option.opts, key=len)} ")[2].partition(" --")[0]
            assert "repeatable" in shown, option.name


@pytest.mark.parametrize("words", [(), ("run",), ("replay",), ("task", "check")], ids=" ".join)
def test_h_is_help(words: tuple[str, ...]) -> None:
    short, long = tbench(*words, "-h"), tbench(*words, "--help")
    assert (short.returncode, short.stdout) == (0, long.stdout)
    assert "-h, --help" in short.stdout and short.stdout.startswith(f"Usage: {' '.join(('tbench', *words))} ")


def test_help_is_as_wide_as_the_terminal() -> None:
    wide, narrow = (tbench("run", "--help", COLUMNS=columns).stdout.splitlines() for columns in ("160", "60"))
    assert 60 < max(map(len, wide)) <= 160
    assert max(map(len, narrow)) <= 60


def test_help_says_every_sentence_to_its_end_and_what_exit_codes_mean() -> None:
    said = tbench("--help").stdout
    assert "..." not in said.replace("[ARGS]...", "")
    codes = re.findall(r"[:,] (\d+) \w", " ".join(said.partition("Exit codes")[2].split()))
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "130"]
    for page in ("first-run", "reliability"):
        text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text().partition("\n## Exit codes\n")[2]
        assert re.findall(r"^\| (\d+) \|", text.partition("\n## ")[0], re.MULTILINE) == codes


def test_the_list_of_commands_fits_one_screen_with_each_of_them_on_one_line_below_a_heading() -> None:
    said = tbench("--help", COLUMNS="80").stdout.splitlines()
    assert len(said) <= 59 and max(map(len, said)) <= 80
    listed = [name for names in app.headings.values() for name in names]
    assert sorted(listed) == sorted(app.table) and len(listed) == len(set(listed))
    rows = said[4 : 4 + len(listed)]
    assert [re.split(r" +", row[10:])[0] for row in rows] == listed


def test_the_help_of_run_fits_one_screen_and_its_last_line_leads_to_all_options() -> None:
    lines = tbench("run", "--help", COLUMNS="100").stdout.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 100
    assert lines[0] == "Usage: tbench run [OPTIONS] [TASKS]"
    count = sum(isinstance(each, click.Option) for each in run.params) - 1
    assert lines[-1].split(maxsplit=1) == ["--help-all", f"Show all {count} options and exit."]


@pytest.mark.parametrize(("group", "word"), [pytest.param(group, word, id=name) for name, group, word in COMMANDS])
def test_a_command_has_help_all_if_and_only_if_it_has_many_options(group: LazyGroup, word: str) -> None:
    command = group.get_command(click.Context(group), word)
    assert command is not None
    options = [each for each in command.params if isinstance(each, click.Option)]
    has_more = any(option.opts == ["--help-all"] for option in options)
    assert has_more == (len(options) - has_more > MAX_SHOWN)
    short, whole = click.Context(command, **SETTINGS), click.Context(command, **SETTINGS)
    whole.meta[SHOWS_ALL] = True
    assert (command.get_help(short) == command.get_help(whole)) == (not has_more)


def test_all_of_the_help_of_run_fits_two_screens_and_its_sentences_are_whole() -> None:
    said = tbench("run", "--help-all", COLUMNS="100").stdout
    lines = said.splitlines()
    assert len(lines) <= 133 and max(map(len, lines)) <= 100
    assert lines[0] == "Usage: tbench run [OPTIONS] [TASKS]"
    for setting in iter_settings(RunConfig):
        assert re.fullmatch(r"[A-Za-z].*[^.]\.", setting.summary), setting.path
        assert not setting.flags or setting.summary in " ".join(said.split()), setting.path


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_options_of_a_model_are_refused_where_none_is_asked(agent: str, tmp_path: Path) -> None:
    def said(*more: str, **environ: str) -> str:
        return tbench("run", "bundled", "--agent", agent, "--dry-run", *more, **environ).stderr

    for option in ("--temperature=0.5", "--model=m", "--steps=3", "--protocol=bash-tool", "--preset=tmax", "--no-seed"):
        assert f"{option.partition('=')[0]}: no effect with --agent {agent}, which uses no model" in said(option)
    # Settings in files are ignored, because they serve other runs, too.
    (tmp_path / "mine.toml").write_text("[model]\ntemperature = 0.5\n")
    assert "without effect" not in said("-c", str(tmp_path / "mine.toml"), OPENAI_BASE_URL="http://127.0.0.1:1/v1")


def test_common_options_come_first_in_the_help_and_every_option_is_in_one_panel() -> None:
    said = tbench("run", "--help-all").stdout
    common = said.partition("Common options:\n")[2].partition("\n\n")[0]
    letters = re.findall(r"^  (-\w)", common, re.MULTILINE)
    assert letters == ["-d", "-t", "-l", "-k", "-m", "-a", "-n", "-o", "-v", "-c", "-h"]
    assert common in tbench("run", "--help").stdout
    first = re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.MULTILINE)
    assert len(first) == len(set(first))
    for option in run.params:
        assert not isinstance(option, click.Option) or set(first) & set(option.opts), option.opts


@pytest.mark.parametrize("words", ["extract", "replay run", "resume", "config show", "fork", "debug", "task check"])
def test_other_configured_commands_have_the_same_order(words: str) -> None:
    said = tbench(*words.split(), "--help").stdout.partition("\n\n  ")[2].partition("Common options:\n")[2]
    common = said.partition("\n\n")[0].splitlines()
    configured = [letter for letter in re.findall(r"^  (-\w)", "\n".join(common), re.MULTILINE) if letter != "-d"]
    assert configured == [
        letter for letter in ("-t", "-x", "-l", "-k", "-m", "-a", "-n", "-o", "-v", "-c", "-h") if letter in configured
    ]
    assert "-c, --config FILE|NAME=VALUE" in said


def test_arguments_and_required_options_come_first_in_the_help() -> None:
    common = tbench("fork", "--help").stdout.partition("Common options:\n")[2]
    assert re.findall(r"^  (\S+)", common, re.MULTILINE)[:3] == ["TRIAL", "--at-step", "-m,"]


def test_resume_shows_no_defaults_because_those_are_the_run_s_own() -> None:
    said = tbench("resume", "--help").stdout
    assert "Concurrent trials, or auto: as many as vLLM has capacity for.\n" in said and "[600]" not in said


@pytest.mark.parametrize("words", ["task check", "calibrate"])
def test_commands_that_ask_no_model_do_not_offer_to_follow_its_load(words: str) -> None:
    said = tbench(*words.split(), "--help").stdout
    assert "-n, --concurrency INT " in said and "Concurrent trials.\n" in said and "vLLM" not in said


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("run --api-key sk-1", "no such option --api-key; the key comes from the variable OPENAI_API_KEY"),
        ("doctor --api-key sk-1", "no such option --api-key; the key comes from the variable OPENAI_API_KEY"),
        (
            "run --env-file .env",
            "--env-file; run 'set -a; . FILE; set +a' first, which sets its variables",
        ),
        ("run -a oracle -t tidynotes", "--task tidynotes: matches no task in {tasks}; did you mean tidy-notes?"),
        ("debug tidynotes -a oracle", "tbench: tidynotes: matches no task in {tasks}; did you mean tidy-notes?"),
        ("extract --agent oracle", "no such option --agent; see tbench extract --help-all"),
        ("summary {runs}", "{runs}: contains runs; give one of them, as listed by 'tbench history {runs}'"),
        ("leaderboard {runs}", "no result of a replay"),
        ("leaderboard {runs}", "or list runs with tbench history"),
    ],
)
def test_a_usual_mistake_is_answered_with_what_helps(words: str, advice: str) -> None:
    known = {"runs": str(KILLED_RUN.parent), "tasks": str(tasks_dir())}
    done = tbench(*words.format(**known).split())
    assert (done.returncode, done.stdout) == (2, "")
    assert advice.format(**known) in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("group", "word"), [pytest.param(group, word, id=name) for name, group, word in COMMANDS])
def test_o_is_the_output_wherever_there_is_one(group: LazyGroup, word: str) -> None:
    command = group.get_command(click.Context(group), word)
    assert command is not None
    for option in command.params:
        assert ("--output" in option.opts) == ("-o" in option.opts)


@pytest.mark.parametrize("words", [(), ("run",), ("task", "list")], ids=" ".join)
def test_help_is_also_a_command(words: tuple[str, ...]) -> None:
    done = tbench("help", *words)
    assert (done.returncode, done.stdout) == (0, tbench(*words, "--help").stdout)


def test_without_a_command_the_help_is_on_stdout_for_a_pager() -> None:
    done = tbench()
    assert (done.returncode, done.stdout, done.stderr) == (2, tbench("--help").stdout, "")


@pytest.mark.parametrize(
    ("manifest", "what", "command"),
    [("extraction.json", "an extraction", "extract"), ("replay.json", "a replay", "replay run")],
)
def test_what_is_no_run_is_gone_on_with_by_the_command_that_began_it(
    manifest: str, what: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / manifest).write_text("{}")
    for words in (["resume", str(tmp_path)], ["run", "-a", "oracle", "--resume", "--output", str(tmp_path)]):
        done = tbench(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"tbench: {tmp_path}: is {what}, not a run; to resume it, repeat its tbench {command} command "
            f"with --output {tmp_path} --resume\n"
        )


@pytest.mark.parametrize("words", ["task list", f"summary {KILLED_RUN}", "run --help"])
def test_a_reader_that_goes_away_is_no_error(words: str) -> None:
    shell = f"{' '.join(MODULE)} {words}; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"{{ {shell}; }} | true"], capture_output=True, text=True, check=False)
    assert done.stderr == "0\n"


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run --temprature 1", "tbench run: no such option --temprature; did you mean --temperature?"),
        ("run --temprature=1", "tbench run: no such option --temprature; did you mean --temperature?"),
        ("run --temp 1", "tbench run: no such option --temp; did you mean --temperature?"),
        ("run --n-concurrent 4", "tbench run: no such option --n-concurrent; did you mean --concurrency?"),
        ("run --xyzzy", "tbench run: no such option --xyzzy; see tbench run --help-all"),
        ("sumary x", "tbench: no such command sumary; did you mean summary?"),
        ("xyzzy", "tbench: no such command xyzzy; see tbench --help"),
        ("task chekc", "tbench task: no such command chekc; did you mean check?"),
        ("summary", "tbench summary: missing argument RUN; see tbench summary --help"),
        ("correlate x", "tbench correlate: missing option --executed; see tbench correlate --help"),
        ("run --seeds two", "tbench: --seeds: Input should be a valid integer (got 'two')"),
        ("run -k 0", "tbench: --seeds: Input should be greater than or equal to 1 (got '0')"),
        ("run --temperature warm", "tbench: --temperature: Input should be a valid number (got 'warm')"),
        ("run --seeds", "tbench run: option '--seeds' requires an argument"),
        ("run --verify never", "tbench: --verify: Input should be 'shared', 'isolated' or 'both' (got 'never')"),
        ("summary a b", "tbench summary: got unexpected extra argument (b)"),
        ("resume --retry-errors sandbox_lots x", "sandbox_lots: no such type of error; did you mean sandbox_lost?"),
        *(
            (f"run --agent {name}", f"--agent {name}: is a preset; give --preset {name} instead")
            for name in PRESETS
            if not is_recipe(name)
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: str, said: str) -> None:
    done = tbench(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and done.stderr.strip().endswith(said)
    assert done.stderr.startswith("tbench")


# -- --retry-errors --------------------------------------------------------------------------------


def asked(command: click.Command, *words: str) -> tuple[str | None, str]:
    """Return the types of error, and the run or tasks."""
    assert isinstance(command, CommandWithRetryErrors)
    with command.make_context("command", list(words)) as context:
        return context.params["retry_errors"], str(context.params["run" if command is resume else "tasks__source"])


@pytest.mark.parametrize("command", [run, resume], ids=["run", "resume"])
@pytest.mark.parametrize(
    ("words", "types"),
    [
        ("myrun", None),
        ("myrun --retry-errors", "all"),
        ("--retry-errors myrun", "all"),
        ("--retry-errors all myrun", "all"),
        ("--retry-errors sandbox_lost myrun", "sandbox_lost"),
        ("--retry-errors sandbox_lost engine_unreachable myrun", "sandbox_lost,engine_unreachable"),
        ("--retry-errors sandbox_lost,internal env_missing myrun", "sandbox_lost,internal,env_missing"),
        ("--retry-errors=sandbox_lost myrun", "sandbox_lost"),
        ("--retry-errors=sandbox_lost,internal myrun", "sandbox_lost,internal"),
        ("--retry-errors -n 2 myrun", "all"),
        ("--retry-errors internal -n 2 myrun", "internal"),
        ("--retry-errors -- myrun", "all"),
        ("myrun --retry-errors --", "all"),
    ],
)
def test_types_of_error_are_the_words_behind_the_option(command: click.Command, words: str, types: str | None) -> None:
    assert asked(command, *words.split()) == (types, "myrun")


def test_behind_two_dashes_nothing_is_an_option() -> None:
    assert asked(resume, "--retry-errors", "--", "internal") == ("all", "internal")
    assert asked(resume, "--", "--retry-errors") == (None, "--retry-errors")


def test_the_bundled_tasks_and_a_path_are_no_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(run, "--retry-errors", "bundled") == ("all", "bundled")
    assert asked(run, "--retry-errors", "./internal") == ("all", "./internal")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sandbox_lots").mkdir()
    assert asked(resume, "--retry-errors", "sandbox_lots") == ("all", "sandbox_lots")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--retry-errors sandbox_lots x", "sandbox_lots: no such type of error; did you mean sandbox_lost?"),
        ("x --retry-errors internal,sandbox_lots", "sandbox_lots: no such type of error; did you mean sandbox_lost?"),
        ("--retry-errors=sandbox_lots x", "sandbox_lots: no such type of error; did you mean sandbox_lost?"),
        ("--retry-errors a,b x", "a: no such type of error; known: all, "),
        ("--retry-errors=a x", "a: no such type of error; known: all, "),
        ("x --retry-errors foo_bar", "foo_bar: no such type of error; known: all, "),
        ("--retry-errors foo_bar x", "foo_bar: no such type of error; known: all, "),
    ],
)
def test_a_misspelled_type_is_named_with_its_nearest(words: str, said: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        asked(resume, *words.split())
    assert error_line(refused.value).startswith(f"command: --retry-errors {said}")


# -- completion ------------------------------------------------------------------------------------


def completed(line: str) -> set[str]:
    """Return bash's completions of the last word of a line."""
    words = line.split(" ")
    done = tbench(_TBENCH_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert done.stderr == ""
    return {each.partition(",")[2] for each in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tbench re", {"resume", "regrade", "report", "replay", "refuse"}),
        ("tbench task ", {"list", "check", "new", "convert", "shell", "solve", "verify"}),
        ("tbench run --verify ", {"shared", "isolated", "both"}),
        ("tbench run --keep f", {"failed"}),
        ("tbench run --network ", {"task", "none", "bridge"}),
        ("tbench run --log-level w", {"warning"}),
        ("tbench run --preset ", set(PRESETS)),
        ("tbench run --protocol ", set(PROTOCOLS)),
        ("tbench extract --protocol ", set(PROTOCOLS)),
        ("tbench run --render ", set(get_args(Rendering.model_fields["template"].annotation))),
        ("tbench run --strip-thinking ", set(get_args(Rendering.model_fields["strip_thinking"].annotation))),
        ("tbench extract --relevance ", set(get_args(Counting))),
        ("tbench extract --conciseness ", set(get_args(Shape))),
        ("tbench run --on-overflow s", {"stop", "summarize"}),
        ("tbench resume --retry-errors sandbox", {"sandbox_failed", "sandbox_lost"}),
        ("tbench resume --retry-errors ", {"all", *KINDS}),
        ("tbench leaderboard --format ", {"markdown", "csv", "json"}),
        ("tbench run --temp", {"--temperature"}),
        ("tbench run --help", {"--help", "--help-all"}),
    ],
)
def test_a_shell_completes(line: str, words: set[str]) -> None:
    assert completed(line) == words


@pytest.mark.parametrize("command", ["summary", "compare"])
def test_the_help_names_the_settings_that_have_no_option_of_their_own(command: str) -> None:
    words = " ".join(tbench(command, "--help").stdout.split())
    assert "with NAME one of cost.prompt_price," in words
