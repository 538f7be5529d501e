"""Names that users choose, and the rule each has to keep.

Source: docs/design.md, sections 7 and 8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from workhorse.domain.showing import shown
from workhorse.errors import InvalidNameError

_QUEUE: Final = re.compile(r"[a-z0-9_-]{1,60}")
_ENVIRONMENT: Final = re.compile(r"[a-z0-9_]{0,20}")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")

MAX_TAGS: Final = 20
MAX_TAG_CHARS: Final = 100
PRIORITIES: Final = range(101)


def check_queue(name: object) -> str:
    """Return a queue's name: 1 to 60 characters of `a-z0-9_-`."""
    if isinstance(name, str) and _QUEUE.fullmatch(name):
        return name
    raise InvalidNameError(f"queue {shown(name)} is not a name of 1 to 60 characters of a-z0-9_-")


def check_task(name: object) -> str:
    """Return a task's name: 1 to 200 printable characters."""
    return _printable("task", name, 200)


def check_boundary(name: object) -> str:
    """Return a boundary's name: 1 to 200 printable characters."""
    return _printable("the name of a boundary", name, 200)


def check_key(key: object) -> str:
    """Return an idempotency key: 1 to 256 printable characters."""
    return _printable("idempotency key", key, 256)


def check_session(name: object) -> str:
    """Return a session's name: 1 to 256 printable characters."""
    return _printable("session", name, 256)


def check_request(request_id: object) -> str:
    """Return the id of an operator's request: 1 to 200 printable characters."""
    return _printable("request id", request_id, 200)


def check_tags(tags: object) -> tuple[str, ...]:
    """Return tags, each once and in order: at most 20 of 1 to 100 printable characters."""
    if isinstance(tags, str):
        raise InvalidNameError(f"tags are a list of names; got the single text {shown(tags)}")
    if not isinstance(tags, Iterable):
        raise InvalidNameError(f"tags are a list of names; got {type(tags).__name__}")
    unique = tuple(dict.fromkeys(_printable("tag", tag, MAX_TAG_CHARS) for tag in tags))
    if len(unique) > MAX_TAGS:
        raise InvalidNameError(f"a run has at most {MAX_TAGS} tags; got {len(unique)}")
    return unique


def check_priority(priority: object) -> int:
    """Return a priority: a whole number from 0 to 100; higher is claimed first."""
    if type(priority) is int and priority in PRIORITIES:
        return priority
    raise InvalidNameError(f"priority {shown(priority)} is not a whole number from 0 to 100")


def check_environment(name: object) -> str:
    """Return an environment's name: empty, or up to 20 characters of `a-z0-9_`."""
    if isinstance(name, str) and _ENVIRONMENT.fullmatch(name):
        return name
    raise InvalidNameError(
        f"environment {shown(name)} is not a name of at most 20 characters of a-z0-9_"
    )


def check_schema(name: object) -> str:
    """Return a database schema's name: 1 to 40 characters of `a-z0-9_`, no digit first."""
    if isinstance(name, str) and _SCHEMA.fullmatch(name):
        return name
    raise InvalidNameError(
        f"schema {shown(name)} is not a name of 1 to 40 characters of a-z0-9_, no digit first"
    )


def _printable(what: str, name: object, most: int) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(f"{what} must be text; got {type(name).__name__}")
    if not 1 <= len(name) <= most:
        raise InvalidNameError(f"{what} has {len(name):,} characters; it may have 1 to {most}")
    if not name.isprintable():
        raise InvalidNameError(f"{what} {shown(name)} holds a character that cannot be printed")
    return name
