"""The log of a command: lines on standard error, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Final

from workhorse.cli.texts import visible
from workhorse.telemetry import LOGGER

if TYPE_CHECKING:
    from workhorse.settings import Settings

_CHATTY: Final = ("aiobotocore", "asyncio", "boto3", "botocore", "s3transfer", "urllib3")


def set_up_logging(settings: Settings, *, long_running: bool) -> None:
    """Send the log to standard error, unless the app's own module has set logging up already.

    A short command's answer is on standard output, so its log tells of trouble only.
    """
    level: int = logging.getLevelNamesMapping()[settings.log_level]
    if not long_running and level > logging.DEBUG:
        level = max(level, logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


class TextFormatter(logging.Formatter):
    """`2026-01-31T08:00:00.000Z INFO worker: text`, one line each, tracebacks indented below."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        name = record.name.removeprefix(f"{LOGGER}.")
        line = f"{_at(record)} {record.levelname} {name}: {visible(record.getMessage())}"
        if record.exc_info:
            trace = visible(self.formatException(record.exc_info), lines=True)
            line += "".join(f"\n    {each}" for each in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, and `traceback` on errors."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        fields = {
            "at": _at(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _at(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"
