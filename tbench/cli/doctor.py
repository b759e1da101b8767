"""`tbench doctor`: can this machine, its engine and the endpoint carry a run?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tbench import exit_codes
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.doctor import Finding
    from tbench.doctor.connection import Surroundings
    from tbench.doctor.features import Feature


@click.command(cls=TbenchCommand)
@click.option("--base-url", envvar="OPENAI_BASE_URL", show_envvar=True, help="Also look at this endpoint.")
@click.option(
    "--model",
    "-m",
    is_flag=False,
    flag_value="",
    help="Also ask for each feature of this model, once: seeds, tools, logprobs …; without a name, the only one.",
)
@click.option("--engine", metavar="ADDRESS", help="Look at this engine, given as for tbench run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor(base_url: str | None, model: str | None, engine: str | None, as_json: bool) -> None:
    """Check engine, limits, network, disk, certificates, clock and endpoint; exit with 2 if something fails."""
    import asyncio
    import os
    from pathlib import Path

    from tbench.doctor.examination import Subject, examination
    from tbench.errors import UsageError

    if model is not None and not base_url:
        raise UsageError("--model: give --base-url as well, or set OPENAI_BASE_URL")
    key = os.environ.get("OPENAI_API_KEY")
    with _surroundings(engine) as here:
        findings = asyncio.run(examination(Subject(Path("runs"), base_url, model or None, key), here))
    failed = [finding.name for finding in findings if finding.status == "fail"]
    features: list[Feature] = []
    if model is not None and base_url and "endpoint" not in failed:
        features = asyncio.run(_features(base_url, model or None, key))
    _print_json(findings, features) if as_json else _print_lines(findings, features)
    if failed:
        raise click.exceptions.Exit(exit_codes.USAGE)


@contextlib.contextmanager
def _surroundings(engine: str | None) -> Iterator[Surroundings]:
    """This process and the engine, a way to which is there for the block. Raises UsageError where there is none."""
    from dataclasses import replace

    from tbench.doctor.connection import Surroundings
    from tbench.fleet.address import EngineAddress
    from tbench.fleet.forward import SshForward

    here = Surroundings.of_this_process()
    address = EngineAddress.parse(engine) if engine is not None else None
    if address is None or address.scheme != "ssh":
        yield here if address is None else replace(here, host=address.text)
        return
    with contextlib.closing(SshForward(address)) as forward:
        forward.connect()
        yield replace(here, host=forward.host, over_ssh=address.text)


async def _features(base_url: str, model: str | None, key: str | None) -> list[Feature]:
    from tbench.doctor.endpoint import served_model
    from tbench.doctor.features import features_of

    name = await served_model(base_url, model, key)
    return [] if name is None else await features_of(base_url, name, key)


def _print_json(findings: list[Finding], features: list[Feature]) -> None:
    import json
    from dataclasses import asdict

    whole: dict[str, Any] = {
        "ok": all(finding.status != "fail" for finding in findings),
        "checks": [asdict(each) for each in findings],
    }
    if features:
        whole |= {"features": [asdict(each) for each in features], **_fits(features)}
    print_text(json.dumps(whole, indent=2, ensure_ascii=False))


def _fits(features: list[Feature]) -> dict[str, dict[str, str]]:
    """Which protocols and presets fit, each with what keeps it from that."""
    from tbench.config.presets import PRESETS, preset
    from tbench.doctor.features import fitting_protocols

    protocols = fitting_protocols(features)
    completions = next((each.can for each in features if each.name == "completions"), "yes")
    presets = {}
    for name in PRESETS:
        values = preset(name)
        why = protocols[values["agent"]["protocol"]]
        if not why and values.get("model", {}).get("template", "server") != "server" and completions == "no":
            why = "it renders prompts, for which there is no /v1/completions here"
        presets[name] = why
    return {"protocols": protocols, "presets": presets}


def _print_features(features: list[Feature]) -> None:
    from tbench.cli.printing import aligned
    from tbench.text import plain

    print_line("")
    for line in aligned(
        ("feature", "can", "seen"), [(each.name, each.can, plain(each.seen, 200)) for each in features]
    ):
        print_line(line)
    print_line("")
    for kind, found in _fits(features).items():
        print_line(f"{kind} that fit: {', '.join(name for name, why in found.items() if not why) or 'none'}")
        for name, why in found.items():
            if why:
                print_line(f"  not {name}: {why}")


def _print_lines(findings: list[Finding], features: list[Feature]) -> None:
    from tbench.text import plain

    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print_line(f"{finding.status:<8}{finding.name:<{width}}  {plain(finding.seen, 400)}")
        if finding.advice:
            print_line(f"{'':<{8 + width}}  -> {plain(finding.advice, 400)}")
    counts = {status: sum(finding.status == status for finding in findings) for status in ("fail", "warn", "skipped")}
    said = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    print_line(f"{len(findings)} checks: {said or 'all ok'}")
    if features:
        _print_features(features)
