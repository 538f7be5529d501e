"""The asynchronous forms of calls: refused as the others are, before anything is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from tests.fuzz.evil import (
    OBJECTS,
    SECRET,
    durations,
    instants,
    just,
    objects,
    or_evil,
    texts,
)
from tests.fuzz.kind import Check, Kind
from tests.fuzz.kinds.calls import _options as enqueue_options
from tests.fuzz.rigs import Installation, installation
from tests.fuzz.source import Source
from workhorse.domain.ids import new_run_id

_NAME: Final = or_evil(just("paid", "approved"))
_RUN: Final = or_evil(just("@waiting", "@finished", str(new_run_id())))


class _Acts:
    """Asynchronous calls by name, on a run that waits and one that has ended."""

    def __init__(self, installed: Installation, runner: asyncio.Runner) -> None:
        self._installed = installed
        self._runner = runner
        app = installed.app

        @app.task("any")
        def any_of(value: Any = None) -> None: ...

        self.waiting = any_of.enqueue(delay=timedelta(days=300)).id
        self.finished = any_of.enqueue().id
        app.cancel(self.finished)
        self.token = app.create_token()
        ended = app.run(self.finished)
        self.calls: dict[str, Callable[..., Any]] = {
            "enqueue": any_of.enqueue_async,
            "many": lambda payloads, **options: app.enqueue_many_async(
                [any_of.prepare(payload, **options) for payload in payloads]
            ),
            "things": app.enqueue_many_async,
            "signal": app.send_signal_async,
            "decide": app.complete_human_wait_async,
            "token": app.complete_token_async,
            "create token": app.create_token_async,
            "cancel": app.cancel_async,
            "result": ended.result_async,
            "signal run": ended.send_signal_async,
        }

    def check(self, given: tuple[str, dict[str, Any]]) -> bool:
        which, arguments = given
        known = {"@waiting": self.waiting, "@finished": self.finished, "@token": self.token}
        arguments = {
            name: known.get(value, value) if type(value) is str else value
            for name, value in arguments.items()
        }
        names = any(
            type(value) is str and SECRET in value
            for name, value in arguments.items()
            if name not in ("value", "ref", "payload")
        )

        async def call() -> None:
            await self.calls[which](**arguments)

        error = self._installed.refusal_of(
            lambda: self._runner.run(call()), names=names or which in ("enqueue", "many", "things")
        )
        return error is not None


@contextmanager
def _acting() -> Iterator[Check]:
    with installation() as installed, asyncio.Runner() as runner:
        yield _Acts(installed, runner).check


def _act(source: Source) -> tuple[str, dict[str, Any]]:
    ends = or_evil(durations)
    draws: dict[str, Callable[[Source], dict[str, Any]]] = {
        "enqueue": lambda s: enqueue_options(s) | s.options(payload=objects),
        "many": lambda s: {"payloads": s.many(objects, 3)}
        | s.options(key=_NAME, delay=ends, run_at=or_evil(instants)),
        "things": lambda s: {"requests": objects(s)},
        "signal": lambda s: {"run_id": _RUN(s), "name": _NAME(s), "value": objects(s)}
        | s.options(idempotency_key=_NAME),
        "decide": lambda s: {
            "run_id": _RUN(s), "name": _NAME(s), "value": objects(s), "by": _NAME(s)
        } | s.options(why=_NAME, idempotency_key=_NAME),
        "token": lambda s: {"ref": or_evil(just("@token", "wht_x"))(s), "value": objects(s)}
        | s.options(idempotency_key=_NAME),
        "create token": lambda s: s.options(timeout=ends),
        "cancel": lambda s: {"run_id": or_evil(just("@finished"))(s)}
        | s.options(by=_NAME, why=texts),
        "result": lambda s: {"timeout": or_evil(just(0, timedelta(0)))(s)},
        "signal run": lambda s: {"name": _NAME(s), "value": objects(s)},
    }  # fmt: skip
    which = source.pick(sorted(draws))
    return which, draws[which](source)


KINDS: Final = (
    Kind(
        name="async acts",
        share=3_000,
        draw=_act,
        corpus=[
            *(("enqueue", {"payload": each}) for each in OBJECTS[::2]),
            *(("signal", {"run_id": "@waiting", "name": "n", "value": v}) for v in OBJECTS[::2]),
            *(("things", {"requests": each}) for each in OBJECTS[::2]),
            *(("token", {"ref": each, "value": 1}) for each in OBJECTS[::3]),
            *(("result", {"timeout": each}) for each in OBJECTS[::3] if each is not None),
        ],
        rig=_acting,
    ),
)
