"""Logging of the daemon: one line per event on stderr, key=value, always with the node's name."""

import contextlib
import errno
import logging
import os
import sys
from pathlib import Path
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
_KEY_ORDER: Final = ("timestamp", "level", "node", "event")


def configure(*, node: str, log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Set up structlog, and send what libraries log through the standard module the same way.

    ``auto`` is for people on a terminal and ``text`` elsewhere.
    """
    target = cast("TextIO", _Unfailing(sys.stderr if stream is None else stream))
    lowest = logging.getLevelNamesMapping()[level.upper()]

    def with_node(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("node", node)
        return event

    structlog.configure(
        processors=[
            with_node,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(log_format, target),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(lowest),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(max(lowest, logging.INFO))


def get_logger() -> FilteringBoundLogger:
    """Return a logger; it obeys whatever was configured last."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def _renderers(log_format: str, stream: TextIO) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if log_format == "auto" and stream.isatty():
        colors = not os.environ.get("NO_COLOR")
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.LogfmtRenderer(key_order=_KEY_ORDER, drop_missing=True),
    ]


class _Unfailing:
    """A stream whose failures end nothing: the disk is full, or the terminal was closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write as far as that can be done."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)

    def flush(self) -> None:
        """Flush as far as that can be done."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def isatty(self) -> bool:
        """Tell whether people read it."""
        return self._stream.isatty()

    def _failed(self, error: OSError) -> None:
        """Log to nowhere where nobody reads any more; a full disk may get space again."""
        if error.errno not in {errno.EPIPE, errno.EIO}:
            return
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno(), inheritable=True)


class _ToStructlog(logging.Handler):
    """Hands the records of the standard module on, so that there is one stream and one format."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = get_logger().bind(logger=record.name)
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        logger.log(record.levelno, record.getMessage(), exc_info=exc_info)
