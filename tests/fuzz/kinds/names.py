"""Names, keys, ids, instants, durations: each check by itself, with any object at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final

from tests.fuzz.evil import OBJECTS, TEXTS, durations, instants, leaves, objects, texts, typed
from tests.fuzz.judging import refusal_of
from tests.fuzz.kind import Kind
from tests.fuzz.source import Source
from workhorse.cli.inputs import parse_duration, parse_instant
from workhorse.client.checks import check_page, check_said, seconds_of
from workhorse.client.many import check_boundaries
from workhorse.domain import names
from workhorse.domain.builds import is_older
from workhorse.domain.ids import parse_run_id
from workhorse.domain.instants import (
    check_ahead,
    check_duration,
    check_instant,
    from_micros,
    to_micros,
    to_millis,
)
from workhorse.domain.references import check_reference
from workhorse.domain.retry import RetryPolicy
from workhorse.handlers.producing import (
    check_after,
    check_limit,
    check_on_failure,
    check_retry,
)

_NOW: Final = datetime(2026, 1, 31, tzinfo=UTC)


def _instant(value: Any) -> None:
    checked = check_instant("run_at", value)
    assert from_micros(to_micros(checked)) == checked == value
    check_ahead("run_at", checked, _NOW)


def _duration(value: Any) -> None:
    checked = check_duration("delay", value)
    assert to_millis(checked) >= 0


CHECKS: Final[dict[str, Callable[[Any], object]]] = {
    "queue": names.check_queue,
    "task": names.check_task,
    "boundary": names.check_boundary,
    "key": names.check_key,
    "session": names.check_session,
    "request": names.check_request,
    "tag": lambda value: names.check_tags([value]),
    "tags": names.check_tags,
    "priority": names.check_priority,
    "environment": names.check_environment,
    "schema": names.check_schema,
    "run id": parse_run_id,
    "reference": check_reference,
    "boundaries": check_boundaries,
    "after": check_after,
    "after one": lambda value: check_after([value]),
    "on_failure": check_on_failure,
    "retry": check_retry,
    "attempts": lambda value: RetryPolicy(max_attempts=value),
    "factor": lambda value: RetryPolicy(factor=value),
    "first": lambda value: RetryPolicy(first=value),
    "jitter": lambda value: RetryPolicy(jitter=value),
    "page": check_page,
    "said": lambda value: check_said("by", value, least=1),
    "timeout": seconds_of,
    "instant": _instant,
    "duration": _duration,
    "limit": lambda value: check_limit("timeout", value),
}

TYPED: Final[dict[str, Callable[[str], object]]] = {
    "duration": lambda text: parse_duration("delay", text),
    "instant": lambda text: parse_instant("run_at", text),
}
"""What people type."""


def _check(given: tuple[str, Any]) -> bool:
    which, value = given
    return refusal_of(lambda: CHECKS[which](value), names=True) is not None


def _typed(given: tuple[str, str]) -> bool:
    which, text = given
    if which == "build":
        text = text[:100]  # as the setting is
        assert not (is_older(text, "1") and is_older("1", text))
        return False
    return refusal_of(lambda: TYPED[which](text), names=True) is not None


def _each(checks: Any, values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(which, value) for which in checks for value in values]


def _names(source: Source) -> tuple[str, Any]:
    value = source.one(
        texts,
        lambda s: texts(s, 300),
        leaves,
        instants,
        durations,
        lambda s: s.many(texts, 25),
        objects,
    )
    return source.pick(sorted(CHECKS)), value


def _typed_texts(source: Source) -> tuple[str, str]:
    text = source.one(texts, typed("0123456789.msdh "), typed("0123456789-:TZ+.W ", 30))
    return source.pick([*sorted(TYPED), "build"]), text


KINDS: Final = (
    Kind(
        name="names",
        share=15_000,
        draw=_names,
        corpus=_each(CHECKS, OBJECTS),
        rig=lambda: nullcontext(_check),
    ),
    Kind(
        name="typed",
        share=5_000,
        draw=_typed_texts,
        corpus=_each(TYPED, TEXTS),
        rig=lambda: nullcontext(_typed),
    ),
)
