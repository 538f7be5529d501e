"""Exported runs, read back and replayed: a document that is none is refused as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from tests.fuzz.evil import TEXTS, deep, json_values, just, or_json, texts
from tests.fuzz.kind import Check, Kind
from tests.fuzz.rigs import Installation, installation
from tests.fuzz.source import Source
from workhorse import Context
from workhorse.client.replay_check import check_replay
from workhorse.errors import ConfigurationError, ReplayDivergenceError

_AT: Final = or_json(just("2026-01-31T08:00:00+00:00", "2026-01-31T08:00:01+00:00"))


def _document(source: Source) -> Any:
    boundary_names = or_json(just("charge", "rest", "paid", "other"))

    def boundary(s: Source) -> Any:
        return s.fields(
            name=boundary_names,
            kind=or_json(just("checkpoint", "timer", "signal", "human", "any", "group")),
            seq=or_json(lambda s: s.below(5)),
            value=or_json(just(1)),
            created_at=_AT,
        ) | s.options(
            wake_at=_AT, fingerprint=or_json(just("00")), detail=or_json(just(None)), absolute=texts
        )

    def delivery(s: Source) -> Any:
        return s.fields(
            name=boundary_names,
            kind=or_json(just("signal", "human")),
            state=or_json(just("value", "timed_out", "closed", "failed")),
            inbox=or_json(just(1, 2)),
            value=or_json(just(1)),
            at=_AT,
        )

    def run(s: Source) -> Any:
        return {
            "id": "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d", "task": "order", "queue": "default",
            "state": "succeeded", "attempt": 1, "created_at": "2026-01-31T08:00:00+00:00",
        } | s.options(
            id=or_json(just("rubbish")), task=or_json(just("other")), queue=or_json(just("mail")),
            state=or_json(just("waiting", "failed")), attempt=or_json(just(2)),
            tags=or_json(just(["a"])),
            session=or_json(just("s")), key=or_json(just("k")), created_at=_AT, started_at=_AT,
            fence=or_json(just(1)), rerun_of=texts,
        )  # fmt: skip

    document = {
        "workhorse_export": 1,
        "run": run(source),
        "payload": or_json(just(None, {}, {"number": 1}))(source),
        "boundaries": source.many(boundary, 3),
        "deliveries": source.many(delivery, 2),
    } | source.options(
        workhorse_export=or_json(just(1)), run=or_json(run), boundaries=or_json(just([])),
        deliveries=or_json(just([])),
    )  # fmt: skip
    if source.maybe(8):
        return json_values(source)
    if source.maybe(4):
        document.pop(source.pick(sorted(document)))
    return document


@contextmanager
def _replaying() -> Iterator[Check]:
    with installation() as installed:
        task = _task(installed)

        def check(document: Any) -> bool:
            # A document that a message shows is a mistake, whose texts are no secrets of a run.
            error = installed.refusal_of(lambda: check_replay(task, document), names=True)
            assert error is None or isinstance(error, ConfigurationError | ReplayDivergenceError)
            return error is not None

        yield check


def _task(installed: Installation) -> Any:
    @installed.app.task("order")
    def order(ctx: Context, payload: Any = None) -> Any:
        first = ctx.checkpoint("charge", lambda: 1)
        ctx.sleep("rest", timedelta(seconds=1))
        return [first, ctx.wait_for_signal("paid")]

    return order


_ODD: Final[tuple[Any, ...]] = (*TEXTS, None, 2, -1, 1.5, [], {}, deep(500))

KINDS: Final = (
    Kind(
        name="documents",
        share=4_000,
        draw=_document,
        corpus=[
            *TEXTS,
            *({"workhorse_export": each} for each in _ODD),
            *({"workhorse_export": 1, "run": each} for each in _ODD),
            json.dumps({"workhorse_export": 1}),
            b"\xff",
        ],
        rig=_replaying,
    ),
)
