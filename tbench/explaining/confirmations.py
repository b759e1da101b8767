"""Stores and reads the results of forks that tested the causes of a run's failed trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tbench.explaining.explanation import Confirmation
from tbench.files import write_atomically
from tbench.storage.run_files import CONFIRMED_NAME

_FILE = TypeAdapter(dict[str, Confirmation])


def read_confirmations(run: Path) -> Mapping[str, Confirmation]:
    """Return the confirmations of a run by cause; empty if it has none, or if they cannot be read."""
    try:
        return _FILE.validate_json((run / CONFIRMED_NAME).read_bytes())
    except (OSError, ValidationError):
        return {}


def store_confirmation(run: Path, found: Confirmation) -> None:
    """Store a confirmation with a run, instead of an earlier one of the same cause."""
    known = {**read_confirmations(run), found.cause: found}
    write_atomically(run / CONFIRMED_NAME, _FILE.dump_json(known, indent=2))
