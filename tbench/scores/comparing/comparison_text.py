"""Formats comparisons as lines and tables. Runs are A, B, C in the order in which they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from tbench.reward import mean, reward_text
from tbench.scores.comparing.compare import Comparison, PairedDifference
from tbench.scores.comparing.compared_run import ComparedRun, LeftOut
from tbench.scores.cost import Cost, cost_ratio
from tbench.scores.statistics import Row, coverage, mean_std, per_seed_scores
from tbench.scores.summary import percent
from tbench.scores.tables import Column, Sheet
from tbench.text import counted, names_text

ALPHA = 0.05
_METHODS = {"bootstrap": "bootstrap over tasks", "bonett-price": "Bonett-Price"}
_TESTS = {"mcnemar": "McNemar's test", "permutation": "permutation test over tasks"}
_SEEDS_SHOWN = 20
_IN_ROWS = ("first", "second", "tasks", "difference", "se", "better", "worse", "equal", "p", "p_holm")
_ONLY_IN_CSV = (
    *("sign_p", "pairs_p", "first_score", "second_score", "first_coverage", "second_coverage", "worst", "best"),
    *("test", "p_way", "interval_method", "paired_by"),
)


def points(fraction: float) -> str:
    """Format a difference in percentage points, with its sign."""
    return f"{100 * fraction:+.2f}"


def size(fraction: float) -> str:
    """Format a standard error in percentage points."""
    return f"{100 * fraction:.2f}"


def p_text(p: float) -> str:
    """Format a p value with six significant digits."""
    return f"{p:.6g}"


def letters(count: int) -> list[str]:
    """Return A, B, C and so on; after Z comes A2."""
    return [chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "") for index in range(count)]


# -- tables --------------------------------------------------------------------------------------


def side_sheet(sides: Sequence[ComparedRun], models: Sequence[str | None], agents: Sequence[str | None] = ()) -> Sheet:
    """Return a sheet of the runs, each over all of its tasks and seeds; with `agents` if they differ."""
    named = agents if len(set(agents)) > 1 else ()
    columns = (
        Column("letter", "", is_text=True),
        Column("run", "run", is_text=True),
        Column("model", "model", is_text=True),
        *([Column("agent", "agent", is_text=True)] if named else []),
        Column("score", "score %", percent),
        Column("std", "± seeds", size),
        Column("tasks", "tasks"),
        Column("seeds", "seeds"),
        Column("coverage", "coverage %", percent),
    )
    rows = []
    for letter, side, model, agent in zip(letters(len(sides)), sides, models, named or models, strict=True):
        over_seeds = mean_std(per_seed_scores(side.table))
        rows.append(
            {
                "letter": letter,
                "run": side.name,
                "model": model,
                "agent": agent,
                "score": over_seeds.mean,
                "std": over_seeds.std,
                "tasks": len(side.table.tasks),
                "seeds": len(side.table.seeds),
                "coverage": coverage(side.table),
            }
        )
    return Sheet(columns, rows)


def pair_sheet(comparisons: Sequence[Comparison], names: Sequence[tuple[str, str]]) -> Sheet:
    """Return a sheet with one row for each pair of runs; `names` are the runs' names in the sheet."""
    columns = (
        Column("pair", "pair", is_text=True),
        Column("first", None),
        Column("second", None),
        Column("tasks", None),
        Column("seeds", None),
        Column("difference", "points", points),
        Column("se", "SE", size),
        Column("low", "95 % from", points),
        Column("high", "to", points),
        Column("better", "better"),
        Column("worse", "worse"),
        Column("equal", "equal"),
        Column("p", "p", "{:.3g}".format),
        Column("p_holm", "p (Holm)", "{:.3g}".format),
        *(Column(name, None) for name in _ONLY_IN_CSV),
    )
    rows = []
    for each, (first, second) in zip(comparisons, names, strict=True):
        low, high = each.interval_95 or (None, None)
        figures = {name: getattr(each, name) for name in (*_IN_ROWS, *_ONLY_IN_CSV)}
        rows.append(
            {**figures, "seeds": len(each.seeds), "pair": f"{second} - {first}", "low": low, "high": high},
        )
    return Sheet(columns, rows)


def task_sheet(
    comparison: Comparison, first: ComparedRun, second: ComparedRun, names: tuple[str, str], *, every: bool
) -> Sheet:
    """Return a sheet of the tasks on which two runs differ, best gain first; with `every`, equal ones follow."""
    columns = (
        Column("first", None),
        Column("second", None),
        Column("task", "task", is_text=True),
        Column("first_rate", f"{names[0]} %", percent),
        Column("second_rate", f"{names[1]} %", percent),
        Column("difference", "points", points),
        Column("first_seeds", f"{names[0]} by seed", is_text=True),
        Column("second_seeds", f"{names[1]} by seed", is_text=True),
        Column("what", "", is_text=True),
    )
    changed = [each.task for each in comparison.changes]
    equal = [task for task in first.table.tasks if task in second.table.tasks and task not in changed]
    kept = [task for task in equal if every and task not in comparison.left_out.changed]
    news = {each.task: "newly solved" for each in comparison.newly_solved}
    news |= {each.task: "newly failed" for each in comparison.newly_failed}
    rows = []
    for task in changed + kept:
        old, new = _compared_rewards(comparison, first, task), _compared_rewards(comparison, second, task)
        rows.append(
            {
                "first": comparison.first,
                "second": comparison.second,
                "task": task,
                "first_rate": _rate(old),
                "second_rate": _rate(new),
                "difference": _rate(new) - _rate(old),
                "first_seeds": _tokens(old),
                "second_seeds": _tokens(new),
                "what": news.get(task, ""),
            }
        )
    return Sheet(columns, rows)


def _compared_rewards(comparison: Comparison, side: ComparedRun, task: str) -> Row:
    """Return the compared rewards of a task, in the order of the pairs."""
    row = side.table.rows[side.table.tasks.index(task)]
    if comparison.paired_by == "position":
        return row[: len(comparison.seeds)]
    return tuple(row[side.table.seeds.index(seed)] for seed in comparison.seeds)


def _tokens(rewards: Sequence[float | None]) -> str:
    shown = ["-" if each is None else reward_text(each) for each in rewards[:_SEEDS_SHOWN]]
    return " ".join(shown) + (" ..." if len(rewards) > _SEEDS_SHOWN else "")


def _rate(rewards: Sequence[float | None]) -> float:
    return mean([each or 0.0 for each in rewards])


# -- lines ---------------------------------------------------------------------------------------


def lines(comparison: Comparison, names: tuple[str, str], *, together: int = 1) -> Iterator[str]:
    """Yield the lines on a comparison; `together` is the number of comparisons made at once."""
    first, second = names
    yield f"{second} - {first}: {_difference(comparison)}"
    yield f"  {_verdict(comparison, first, second, together)}"
    yield f"  {_p_line(comparison)}"
    counts = f"tasks: {comparison.better} better, {comparison.worse} worse, {comparison.equal} equal"
    solved, failed = len(comparison.newly_solved), len(comparison.newly_failed)
    yield f"  {counts}; {solved} newly solved, {failed} newly failed" if solved or failed else f"  {counts}"
    yield from (f"  {line}" for line in variance_lines(comparison))
    yield from (f"  {line}" for line in _unscored_lines(comparison, first, second))
    yield from (f"  {line}" for line in _left_out_lines(comparison, first, second))


def _difference(paired: PairedDifference) -> str:
    if paired.se is None:
        return f"{points(paired.difference)} points; no standard error of a single task"
    text = f"{points(paired.difference)} points, standard error {size(paired.se)}"
    if paired.interval_95 is None or paired.interval_method is None:
        return f"{text}; no interval: too few tasks with rewards outside 0 to 1"
    low, high = paired.interval_95
    return f"{text}, 95 % interval {points(low)} to {points(high)} ({_METHODS[paired.interval_method]})"


def _verdict(comparison: Comparison, first: str, second: str, together: int) -> str:
    p = comparison.p_holm
    adjusted = f", adjusted for {together} comparisons" if together > 1 else ""
    if p > ALPHA:
        return f"may well be noise: p = {p_text(p)}{adjusted}"
    better, worse = (second, first) if comparison.difference > 0 else (first, second)
    return f"{better} is better than {worse}: p = {p_text(p)}{adjusted}"


def _p_line(comparison: Comparison) -> str:
    """Return all p values, the deciding one first."""
    parts = [f"{_TESTS[comparison.test]} p = {p_text(comparison.p)} ({comparison.p_way}; it decides)"]
    parts.append(f"sign test p = {p_text(comparison.sign_p)}")
    if len(comparison.seeds) > 1:
        parts.append(f"on these tasks alone p = {p_text(comparison.pairs_p)}")
    return "; ".join(parts)


def cost_lines(costs: Sequence[Cost | None]) -> Iterator[str]:
    """Yield the cost of each run that has one, and how costs per solved trial compare; nothing without prices."""
    known = [(name, cost) for name, cost in zip(letters(len(costs)), costs, strict=True) if cost is not None]
    yield from (f"{name} {cost.line}" for name, cost in known)
    for (first, one), (second, other) in combinations(known, 2):
        if (ratio := cost_ratio(one, other)) is not None:
            yield f"{second} costs {ratio:.3g} times as much as {first} per solved trial"
        else:
            yield f"{first} and {second}: no ratio of costs: a part is unknown, or nothing is solved"


def variance_lines(comparison: Comparison) -> Iterator[str]:
    """Yield lines on how much more seeds would reduce the standard error."""
    parts = comparison.variance
    if parts is None:
        if len(comparison.seeds) == 1:
            yield "one seed: noise within tasks and differences between tasks cannot be separated; run several seeds"
        return
    share = parts.share_within
    if share is None:
        return
    within = round(100 * share)
    yield (
        f"{within} % of the squared error is noise within tasks (more seeds reduce it), {100 - within} % is "
        "differences between tasks (only more tasks reduce them)"
    )
    yield (
        f"standard error with {2 * parts.seeds} seeds {size(parts.se(2 * parts.seeds))}, with unlimited seeds "
        f"{size(parts.se_any_seeds)}; for these tasks {size(parts.se_these_tasks)}"
    )


def _unscored_lines(comparison: Comparison, first: str, second: str) -> Iterator[str]:
    if comparison.first_coverage == comparison.second_coverage == 1.0:
        return
    within = ""
    if comparison.worst is not None and comparison.best is not None:
        within = f", with verdicts the difference is within {points(comparison.worst)} to {points(comparison.best)}"
    yield (
        f"coverage {percent(comparison.first_coverage)} % and {percent(comparison.second_coverage)} %; a trial "
        f"without a verdict counts as 0{within}"
    )
    if (scored := comparison.scored_only) is not None:
        tasks_text = counted(scored.tasks, "task")
        yield f"only trials scored by both ({tasks_text}): {_difference(scored)}, p = {p_text(scored.p)}"
    for tasks, where in (
        (comparison.only_first_unscored, f"only {second}"),
        (comparison.only_second_unscored, f"only {first}"),
        (comparison.both_unscored, "none"),
    ):
        if tasks:
            yield f"tasks that {where} could score: {len(tasks)} ({names_text(tasks)})"


def _left_out_lines(comparison: Comparison, first: str, second: str) -> Iterator[str]:
    left = comparison.left_out
    if comparison.paired_by == "position":
        yield f"no seed in common: the first {len(comparison.seeds)} of either run are paired in their order"
    if left != LeftOut():
        common = f"{counted(comparison.tasks, 'common task')} and {counted(len(comparison.seeds), 'seed')}"
        scores = f"{first} {percent(comparison.first_score)} %, {second} {percent(comparison.second_score)} %"
        yield f"over the {common}: {scores}"
    for tasks, name in ((left.only_first, first), (left.only_second, second)):
        if tasks:
            yield f"left out, only in {name}: {counted(len(tasks), 'task')} ({names_text(tasks)})"
    if left.renamed:
        yield f"of these the same under another name: {names_text(f'{old} = {new}' for old, new in left.renamed)}"
    if left.changed:
        yield f"left out, their content has changed: {counted(len(left.changed), 'task')} ({names_text(left.changed)})"
    for seeds, name in ((left.first_seeds, first), (left.second_seeds, second)):
        if seeds:
            yield f"left out, only in {name}: {counted(len(seeds), 'seed')} ({names_text(map(str, seeds))})"
