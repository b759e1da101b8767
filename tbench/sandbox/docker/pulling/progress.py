"""How far a pull has come, added up from what the engine says of each layer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tbench.text import size_shown

_WAITS = ("Pulling fs layer", "Waiting")
_ARRIVED = ("Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists")


class PullProgress:
    """Takes the messages of one pull, from one thread; `words` may be asked for from any other."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._sizes: dict[str, int] = {}
        self._loaded: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._sums = (0, 0, False)
        """Bytes that have come, bytes of all layers that have told their size, and whether others have not."""

    def take(self, message: Mapping[str, Any]) -> None:
        """Count one message in; what is no word about a layer is passed over."""
        layer, status = message.get("id"), str(message.get("status") or "")
        if not isinstance(layer, str):
            return
        detail = message.get("progressDetail")
        current, total = (_number(detail, key) for key in ("current", "total"))
        if status.startswith(_WAITS):
            self._waiting.add(layer)
        elif status == "Downloading" and total:
            self._waiting.discard(layer)
            size = max(total, self._sizes.get(layer, 0))  # of one that was cut, the engine tells what is left of it
            self._sizes[layer], self._loaded[layer] = size, min(size - total + current, size)
        elif status.startswith(_ARRIVED):
            self._waiting.discard(layer)
            self._loaded[layer] = self._sizes.get(layer, 0)
        # In one piece, as a dictionary cannot be added up while another thread fills it.
        self._sums = (sum(self._loaded.values()), sum(self._sizes.values()), bool(self._waiting))

    @property
    def words(self) -> str:
        """How much has come by now, such as `120 of 410 MB`; `+` says that not every layer has told its size.

        Empty where the engine tells no bytes, as Podman's does.
        """
        loaded, total, is_more = self._sums
        if not total:
            return ""
        whole = size_shown(total)
        unit = whole[-3:]
        return f"{size_shown(loaded).removesuffix(unit)} of {whole}{'+' if is_more else ''}"

    @property
    def summary(self) -> str:
        """How much came in which time, such as `410 MB in 63 s`."""
        loaded, _, _ = self._sums
        what = f"{size_shown(loaded)} in " if loaded else ""
        return f"{what}{time.monotonic() - self._started:.0f} s"


def _number(detail: Any, key: str) -> int:
    value = detail.get(key) if isinstance(detail, Mapping) else None
    return int(value) if isinstance(value, int | float) and value > 0 else 0
