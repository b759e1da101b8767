"""`tbench doctor`: can this machine, its engine and the endpoint carry a run?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tbench import exit_codes
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.doctor import Finding


@click.command(cls=TbenchCommand)
@click.option("--base-url", envvar="OPENAI_BASE_URL", show_envvar=True, help="Also look at this endpoint.")
@click.option("--model", "-m", help="Model id, as in tbench run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor(base_url: str | None, model: str | None, as_json: bool) -> None:
    """Check engine, limits, network, disk, certificates, clock and endpoint; exit with 2 if something fails."""
    import asyncio
    import os
    from pathlib import Path

    from tbench.doctor.examination import Subject, examination

    subject = Subject(Path("runs"), base_url, model, os.environ.get("OPENAI_API_KEY"))
    findings = asyncio.run(examination(subject))
    failed = [finding.name for finding in findings if finding.status == "fail"]
    _print_json(findings) if as_json else _print_lines(findings)
    if failed:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _print_json(findings: list[Finding]) -> None:
    import json
    from dataclasses import asdict

    whole = {"ok": all(finding.status != "fail" for finding in findings), "checks": [asdict(each) for each in findings]}
    print_text(json.dumps(whole, indent=2, ensure_ascii=False))


def _print_lines(findings: list[Finding]) -> None:
    from tbench.text import plain

    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print_line(f"{finding.status:<8}{finding.name:<{width}}  {plain(finding.seen, 400)}")
        if finding.advice:
            print_line(f"{'':<{8 + width}}  -> {plain(finding.advice, 400)}")
    counts = {status: sum(finding.status == status for finding in findings) for status in ("fail", "warn", "skipped")}
    said = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    print_line(f"{len(findings)} checks: {said or 'all ok'}")
