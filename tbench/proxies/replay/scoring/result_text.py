"""A replay result as lines of text, in ASCII but for the names of models and datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tbench.proxies.replay.scoring.aggregate import score_of
from tbench.proxies.replay.scoring.recompute import Recomputed
from tbench.text import names_shown, plain

_ODD = {
    "mojibake": "replies with text that the metric itself mangles (scored as upstream does)",
    "lone_surrogate": "replies with half a surrogate pair (replaced; upstream cannot write such a result)",
    "not_an_object": "replies that are JSON but no object (counted as invalid; upstream crashes)",
}


def lines_of_result(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a result: score and coverage, both columns of figures, then what was odd."""
    strict, tolerant, coverage = result["aggregate"], result["tolerant"], result["coverage"]
    yield plain(f"{result['model_short']}: metric {result['metric_revision']}, dataset {result['dataset_sha256'][:12]}")
    yield f"score {result['score']:.2f}; coverage {coverage['answered']}/{coverage['steps']}"
    if coverage["unanswered"]:
        reasons = ", ".join(f"{plain(reason)} {count}" for reason, count in coverage["reasons"].items())
        over = coverage["score_over_answered"]
        yield f"score over answered steps only {'-' if over is None else f'{over:.2f}'}; without a reply: {reasons}"
        yield f"without a reply: {names_shown(plain(error['step'], 60) for error in result['errors'])}"
    yield ""
    yield f"{'':26}{result['metric_revision']:>10}{'tolerant':>10}"
    for name, row in _rows(strict, tolerant):
        yield f"{name:26}" + "".join(f"{cell:>10}" for cell in row)
    yield ""
    for kind, count in result["oddities"].items():
        yield f"{_ODD.get(kind, kind)}: {count}"
    if empty := result["empty_references"]:
        yield f"references without a command: {len(empty)} ({names_shown(plain(key, 60) for key in empty)})"
    if problems := result["problems"]:
        yield f"lines left out: {len(problems)}, first {plain(problems[0])}"


def _rows(strict: Mapping[str, Any], tolerant: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    both = (strict, tolerant)

    def row(name: str, form: str, key: str) -> tuple[str, tuple[str, str]]:
        first, second = (form.format(figures[key]) for figures in both)
        return name, (first, second)

    yield "score (100 x F1)", (f"{score_of(dict(strict)):.2f}", f"{score_of(dict(tolerant)):.2f}")
    yield row("precision", "{:.4f}", "avg_command_precision")
    yield row("recall", "{:.4f}", "avg_command_recall")
    yield row("F1", "{:.4f}", "avg_command_f1")
    yield row("first command exact", "{:.1f}%", "first_cmd_exact_pct")
    yield row("valid JSON", "{:.1f}%", "valid_json_pct")
    yield row("completion recall", "{:.1f}%", "complete_true_recall_pct")
    yield row("premature completion", "{:.1f}%", "premature_complete_rate_pct")
    yield row("commands per step", "{:.2f}", "avg_pred_cmds")
    for bucket, group in strict["by_bucket"].items():
        other = tolerant["by_bucket"][bucket]
        name = f"F1 {plain(bucket, 8)} ({group['steps']} step{'s' * (group['steps'] != 1)})"
        yield name, (f"{group['avg_command_f1']:.4f}", f"{other['avg_command_f1']:.4f}")


def lines_of_recomputed(stored: Mapping[str, Any], found: Sequence[Recomputed]) -> Iterator[str]:
    """The lines of a recomputed result: each aggregate field with its stored and recomputed value."""
    same = [each.revision for each in found if each.identical]
    if len(found) > 1:
        tried = ", ".join(each.revision for each in found)
        yield f"the file does not say its metric revision; identical under: {', '.join(same) or 'none'} (of {tried})"
    # Where none fits, the one that is nearest tells the most.
    best = min(found, key=lambda each: len(each.differing) + len(each.differing_steps))
    yield f"{'field (' + best.revision + ')':30}{'stored':>14}{'recomputed':>14}"
    for key, value in best.aggregate.items():
        verdict = "absent" if key in best.absent else "DIFFERS" if key in best.differing else "identical"
        if isinstance(value, dict):
            yield f"{key:30}{'':>14}{'':>14}  {verdict}"
        else:
            yield f"{key:30}{plain(str(stored.get(key, '-')), 14):>14}{value:>14}  {verdict}"
    count = len(best.aggregate) - len(best.differing) - len(best.absent)
    yield f"{count} of {len(best.aggregate)} aggregate fields identical"
    if best.differing_steps:
        names = names_shown(plain(key, 60) for key in best.differing_steps)
        yield f"steps that differ: {len(best.differing_steps)} ({names})"
