"""run.log: a log of the events of a run, with times."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tbench.cli.printing import print_text
from tbench.cli.progress import EventText
from tbench.errors import UsageError
from tbench.events import Event, Note, RunEnded, RunStarted, TrialPhase, TrialStep, TrialTaskStep, TrialVerdict
from tbench.storage.record_directory import LineFile
from tbench.storage.run_files import CONFIG_NAME, LOG_NAME
from tbench.text import counted, escape_invisible, visible_line

_LOG = logging.getLogger("tbench")


@contextlib.contextmanager
def run_log(directory: Path, level: str, hide: Callable[[str], str]) -> Iterator[RunLog]:
    """Yield a subscriber that writes run.log for the block, also logging warnings of libraries and a final exception.

    `level` is debug, info, warning or error; `hide` removes secrets from every record.
    """
    is_earlier_run = (directory / CONFIG_NAME).exists()
    handler = _FileHandler(directory / LOG_NAME, level.upper(), hide)
    with _attach(handler):
        try:
            yield RunLog(handler)
        except Exception as error:
            # A run that fails before its first event may already own its directory.
            if not is_earlier_run and (directory / CONFIG_NAME).exists():
                handler.begin()
            _LOG.error("%s", error, exc_info=None if isinstance(error, UsageError) else error)
            raise


class RunLog:
    """Subscriber that logs phases and steps as debug, notes and verdicts as info, errors of trials as warnings."""

    def __init__(self, handler: _FileHandler) -> None:
        self._handler = handler
        self._text = EventText()

    def __call__(self, event: Event) -> None:
        # Before the first event, the directory may belong to another process.
        self._handler.begin()
        text = self._text(event)
        match event:
            case RunStarted():
                _LOG.info("%s: %s", event.run, counted(event.trials, "trial"))
            case TrialPhase() | TrialTaskStep() | TrialStep():
                _LOG.debug("%s", text)
            case TrialVerdict():
                _LOG.log(logging.INFO if event.result.error is None else logging.WARNING, "%s", text)
            case Note():
                _LOG.info("%s", text)
            case RunEnded():
                _LOG.info("interrupted" if event.interrupted else "ended")
            case _:
                pass


class _FileHandler(logging.Handler):
    """Logging handler that buffers records until `begin` opens its file.

    Neither a full disk nor a record that cannot be formatted raises in the code that logs.
    """

    def __init__(self, path: Path, level: str, hide: Callable[[str], str]) -> None:
        super().__init__(level)
        self._path = path
        self._hide = hide
        self._file: LineFile | None = None
        self._has_begun = False
        self._early: list[str] = []
        formatter = _OneLine(hide, "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def begin(self) -> None:
        """Open the file and write the buffered records. Never raises: without a file, there is no log."""
        if self._has_begun:
            return
        self._has_begun = True
        with self._lock_held(), contextlib.suppress(OSError):
            self._file = LineFile(self._path)
            for line in self._early:
                self._file.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a library's record may be anything
            line = escape_invisible(self._hide(self.format(record)))
            if self._file is not None:
                self._file.append(line)
            elif not self._has_begun:
                self._early.append(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    @contextlib.contextmanager
    def _lock_held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


class _OneLine(logging.Formatter):
    """Formats a record as one line, with line breaks escaped; only a traceback has several."""

    def __init__(self, hide: Callable[[str], str], form: str, date_form: str) -> None:
        super().__init__(form, date_form)
        self._hide = hide

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging's
        # Secrets may contain line breaks, so hide them before escaping.
        return visible_line(self._hide(super().formatMessage(record)))


class _LastResort(logging.Handler):
    """Prints warnings of libraries without handlers, as Python does when no handler is attached to the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger.parent is not None:
            if logger.handlers and record.name != "py.warnings":
                return
            logger = logger.parent
        if logging.lastResort is not None:
            with contextlib.suppress(OSError):
                print_text(self.format(record), err=True)


@contextlib.contextmanager
def _attach(handler: logging.Handler) -> Iterator[None]:
    """Attach `handler` to tbench's logger and to the root logger for the block; tbench's own records go to it only."""
    root = logging.getLogger()
    handlers = [handler] if root.handlers else [handler, _LastResort(logging.WARNING)]
    for each in handlers:
        root.addHandler(each)
    _LOG.addHandler(handler)
    _LOG.setLevel(handler.level)
    _LOG.propagate = False
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        _LOG.propagate = True
        _LOG.setLevel(logging.NOTSET)
        _LOG.removeHandler(handler)
        for each in handlers:
            root.removeHandler(each)
        handler.close()
