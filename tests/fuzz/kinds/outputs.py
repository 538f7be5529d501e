"""What goes out in lines: measures in EMF, logs. No input puts a line of its own between."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final, cast

from tests.fuzz.evil import TEXTS, texts
from tests.fuzz.kind import Kind
from tests.fuzz.source import Source
from workhorse.cli.logs import JsonFormatter, TextFormatter
from workhorse.cli.texts import plain, shown, visible
from workhorse.domain.measures import Measures
from workhorse.maintenance import EmfWriter
from workhorse.store.fleet.measuring import Measured


def _measured(given: tuple[str, str, str, int]) -> bool:
    namespace, environment, queue, count = given
    stream = io.StringIO()
    each = Measures(queue=queue, runnable=count, oldest_runnable_ms=count, workers=count)
    found = Measured(
        at=datetime(2026, 1, 31, tzinfo=UTC),
        all=Measures(queue=None, runnable=count),
        queues=[each],
        span=cast("Any", None),
    )
    EmfWriter(namespace=namespace, environment=environment, stream=stream)(found)
    written = stream.getvalue()
    written.encode()
    lines = written.splitlines()
    assert len(lines) == written.count("\n") == 2
    first, second = map(json.loads, lines)
    assert first["_aws"]["CloudWatchMetrics"][0]["Namespace"] == namespace
    assert second["Queue"] == queue
    assert second["RunnableRuns"] == count
    return False


def _logged(given: tuple[str, str, str]) -> bool:
    name, text, raised = given
    try:
        raise ValueError(raised)
    except ValueError:
        info: Any = sys.exc_info()
    for trace in (None, info):
        record = logging.LogRecord(
            f"workhorse.{name}", logging.INFO, "f.py", 1, "task %r: %s", (text, text), trace
        )  # fmt: skip
        line = JsonFormatter().format(record)
        assert len(line.splitlines()) == 1
        assert line.isascii()
        assert json.loads(line)["level"] == "INFO"
        first, *rest = TextFormatter().format(record).split("\n")
        assert all(each.startswith("    ") for each in rest)
        assert not rest or trace is not None
        for each in (first, *rest):
            assert visible(each, lines=True) == each
    return False


def _shown(text: str) -> bool:
    said = visible(text)
    assert "\n" not in said
    assert "\x1b" not in said
    assert shown(text)
    json.dumps(plain({"a": [text]}))
    return False


def _of_texts(count: int, *more: Callable[[Source], Any]) -> Callable[[Source], Any]:
    return lambda source: (*(texts(source) for _ in range(count)), *(draw(source) for draw in more))


KINDS: Final = (
    Kind(
        name="emf",
        share=4_000,
        draw=_of_texts(3, lambda s: s.below(10**6)),
        corpus=[(each, each, each, 1) for each in TEXTS],
        rig=lambda: nullcontext(_measured),
    ),
    Kind(
        name="logs",
        share=4_000,
        draw=lambda source: ("worker", texts(source), texts(source)),
        corpus=[("worker", each, each) for each in TEXTS],
        rig=lambda: nullcontext(_logged),
    ),
    Kind(
        name="shown",
        share=3_000,
        draw=texts,
        corpus=TEXTS,
        rig=lambda: nullcontext(_shown),
    ),
)
