"""The body of a wakeup message, shared by every lane that sends text.

Compact JSON, under 1 KiB, that names a run and holds neither payload nor state:

    {"workhorse":1,"run_id":"0197c5a0-...","queue":"default","traceparent":"00-..."}

Whoever may send to the queue may write anything into it, so reading is total: it never raises, and
what it costs is bounded by the cap on the size.

Source: docs/wakeups.md
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from workhorse.domain.ids import RunId
from workhorse.domain.names import check_queue
from workhorse.errors import InvalidNameError
from workhorse.ports import Unreadable, Wakeup

FORMAT: Final = 1
"""The major version that is written; a reader takes this one and none newer."""
MAX_WRITTEN_BYTES: Final = 1024
_MOST_MISSED: Final = 1_000
MAX_READ_CHARS: Final = 8192
"""More than is ever written, so that fields which later versions add find room."""

# The text form alone, in ASCII digits: `uuid.UUID` takes braces, URNs and the digits of any script.
_RUN_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE
)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


def encode(wakeup: Wakeup) -> str:
    """Return a wakeup as a message's body, under 1 KiB whatever it holds.

    A `traceparent` that is none is left out: a hint is worth more than its trace.
    """
    body: dict[str, Any] = {
        "workhorse": FORMAT,
        "run_id": wakeup.run_id,
        "queue": wakeup.queue,
    }
    traceparent = _traceparent(wakeup.traceparent)
    if traceparent is not None:
        body["traceparent"] = traceparent
    if wakeup.missed:
        body["missed"] = wakeup.missed
    return json.dumps(body, separators=(",", ":"))


def decode(body: object) -> Wakeup | Unreadable:
    """Return the wakeup that a message's body holds, or why it holds none. Never raises.

    Fields that are unknown are ignored, and so is a `traceparent` that is none. A newer major
    version is told apart from rubbish, since a newer worker can read it.
    """
    if not isinstance(body, str) or len(body) > MAX_READ_CHARS:
        return Unreadable.MALFORMED
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, or an integer or a nesting without measure
        return Unreadable.MALFORMED
    if not isinstance(fields, dict):
        return Unreadable.MALFORMED
    version = fields.get("workhorse")
    if type(version) is not int or version < FORMAT:
        return Unreadable.MALFORMED
    if version > FORMAT:
        return Unreadable.NEWER_FORMAT
    return _wakeup(fields)


def _wakeup(fields: dict[str, Any]) -> Wakeup | Unreadable:
    run_id = fields.get("run_id")
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        return Unreadable.MALFORMED
    try:
        queue = check_queue(fields.get("queue"))
    except InvalidNameError:
        return Unreadable.MALFORMED
    missed = fields.get("missed")
    return Wakeup(
        RunId(run_id.lower()),
        queue,
        _traceparent(fields.get("traceparent")),
        missed if type(missed) is int and 0 <= missed <= _MOST_MISSED else 0,
    )


def _traceparent(value: object) -> str | None:
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None
