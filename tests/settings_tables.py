"""The tables of settings in docs/reference/, made of the configurations. As a program, it writes them there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tbench.config.formatting import as_toml
from tbench.config.setting import Setting, section_panels
from tbench.config.settings import RunConfig
from tbench.nightly.configuration import NightlyConfig

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
NIGHTLY = PAGE.with_name("nightly-settings.md")
_TABLES = re.compile(r"(?<=\n)### (?:tasks|nightly)\b.*\Z", re.DOTALL)


def tables() -> str:
    """A heading and a table for each section."""
    lines: list[str] = []
    for section, title, settings in section_panels(RunConfig):
        lines += [_heading(section, title), "", "| setting | flag | default | |", "|---|---|---|---|"]
        lines += [*map(_row, settings), ""]
    return "\n".join(lines)


def nightly_tables() -> str:
    """The table for a nightly benchmark, whose settings have no flags, with the whole help of each."""
    lines: list[str] = []
    for section, title, settings in section_panels(NightlyConfig):
        lines += [_heading(section, title), "", "| setting | default | |", "|---|---|---|"]
        lines += [f"| `{each.name}` | `{as_toml(each.default)}` | {each.help} |" for each in settings]
        lines.append("")
    return "\n".join(lines)


def written(page: str) -> str:
    """The tables that are on the page."""
    found = _TABLES.search(page)
    assert found, "the page has no tables of settings"
    return found[0]


def _heading(section: str, title: str) -> str:
    return f"### {section}" if section == title.lower() else f"### {section}: {title[0].lower()}{title[1:]}"


def _row(setting: Setting) -> str:
    cells = [f"`{setting.path}`", ", ".join(_flags(setting)), f"`{as_toml(setting.file_default)}`", _words(setting)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _flags(setting: Setting) -> Iterator[str]:
    option = setting.option
    if option.argument is not None:
        yield f"`{option.argument}`"
        yield from (f"`{flag}`" for flag in sorted(option.flags, key=len))
    else:
        off = () if setting.kind is bool else setting.off_flags
        yield from (f"`{flag}`" for flag in (*sorted(setting.flags, key=len), *sorted(off, key=len)))


def _words(setting: Setting) -> str:
    named = all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", setting.summary) for word in setting.choices)
    choices = ", ".join(f"`{word}`" for word in setting.choices)
    return setting.summary if named else f"{setting.summary} One of {choices}."


if __name__ == "__main__":
    for page, made in ((PAGE, tables), (NIGHTLY, nightly_tables)):
        text = page.read_text(encoding="utf-8")
        page.write_text(_TABLES.sub(lambda _, made=made: made(), text), encoding="utf-8")  # type: ignore[misc]
