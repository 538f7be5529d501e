"""The calls of an app, with any object as any argument: refused before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypedDict

from pydantic import BaseModel

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
from tests.fuzz.kinds.values import same
from tests.fuzz.rigs import Installation, installation
from tests.fuzz.source import Draw, Source
from workhorse import RetryPolicy
from workhorse.app import Workhorse


class Order(BaseModel):
    number: int
    items: list[str] = []
    note: str | None = None


@dataclass
class Mail:
    to: str
    tries: int = 1


class Address(TypedDict, total=False):
    street: str
    zip: int


def _tasks(app: Workhorse) -> dict[str, Any]:
    @app.task("plain")
    def plain(value: Any) -> None: ...

    @app.task("model")
    def model(order: Order) -> None: ...

    @app.task("dataclass")
    def of_dataclass(mail: Mail) -> None: ...

    @app.task("typed dict")
    def of_typed_dict(address: Address) -> None: ...

    @app.task("numbers")
    def of_numbers(values: dict[str, list[int]]) -> None: ...

    @app.task("nothing")
    def nothing() -> None: ...

    return {
        task.name: task for task in (plain, model, of_dataclass, of_typed_dict, of_numbers, nothing)
    }


@contextmanager
def _payloads() -> Iterator[Check]:
    with installation() as installed:
        tasks = _tasks(installed.app)

        def check(given: tuple[str, Any]) -> bool:
            name, payload = given
            runs: list[Any] = []
            error = installed.refusal_of(lambda: runs.append(tasks[name].enqueue(payload)))
            if error is None and name == "plain":
                stored = runs[0].view().payload
                assert same(json.loads(stored), payload)
            return error is not None

        yield check


def _payload(source: Source) -> tuple[str, Any]:
    value = source.one(
        objects,
        lambda s: s.fields(
            number=or_evil(lambda s: s.below(9)), items=or_evil(just([])), note=or_evil(texts)
        ),
        lambda s: s.fields(to=or_evil(texts), tries=or_evil(lambda s: s.below(9))),
        lambda s: s.fields(street=or_evil(texts), zip=or_evil(lambda s: s.below(9))),
        lambda s: {texts(s): s.many(or_evil(lambda s: s.below(9)), 3)},
        lambda s: Order.model_construct(number=objects(s, 1)),
        lambda s: Mail(objects(s, 1), objects(s, 1)),
    )
    return source.pick(["plain", "model", "dataclass", "typed dict", "numbers", "nothing"]), value


@contextmanager
def _enqueueing() -> Iterator[Check]:
    with installation() as installed:
        task = _tasks(installed.app)["nothing"]

        def check(options: dict[str, Any]) -> bool:
            return installed.refusal_of(lambda: task.enqueue(**options), names=True) is not None

        yield check


def _options(source: Source) -> dict[str, Any]:
    ids = "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d", "rubbish"
    return source.options(
        queue=or_evil(just("mail", "default")),
        priority=or_evil(lambda s: s.below(101)),
        delay=or_evil(durations),
        run_at=or_evil(instants),
        key=or_evil(texts),
        session=or_evil(texts),
        tags=or_evil(lambda s: s.many(or_evil(texts), 4)),
        deadline=or_evil(durations),
        timeout=or_evil(durations),
        retry=or_evil(just(RetryPolicy(max_attempts=1))),
        after=or_evil(lambda s: s.many(or_evil(just(*ids)), 3)),
        on_failure=or_evil(just("fail", "run")),
    )


class _Acts:
    """Calls of an app by name, on runs of each state."""

    def __init__(self, installed: Installation) -> None:
        self._installed = installed
        app = installed.app
        task = _tasks(app)["nothing"]
        self.waiting = task.enqueue(delay=timedelta(days=300)).id
        self.finished = task.enqueue().id
        app.cancel(self.finished)
        self.token = app.create_token()
        admin = app.admin
        self.calls: dict[str, Callable[..., Any]] = {
            "signal": app.send_signal,
            "decide": app.complete_human_wait,
            "token": app.complete_token,
            "create token": app.create_token,
            "cancel": app.cancel,
            "rerun": admin.rerun,
            "list": admin.list_runs,
            "show": admin.show,
            "waits": admin.list_waits,
            "checkpoints": admin.list_checkpoints,
            "timeline": admin.timeline,
            "export": admin.export,
            "pause": admin.pause_queue,
            "resume": admin.resume_queue,
            "rehint": admin.rehint,
            "cancel many": admin.cancel_many,
            "rerun many": admin.rerun_many,
            "reset": app.idempotency.reset,
            "run": app.run,
            "result": lambda run_id, timeout: app.run(run_id).result(timeout=timeout),
            "dead letters": admin.dead_letters,
        }

    def named(self, value: Any) -> Any:
        """Put ids and references of this installation in the place of their names."""
        known = {"@waiting": self.waiting, "@finished": self.finished, "@token": self.token}
        return known.get(value, value) if type(value) is str else value

    def check(self, given: tuple[str, dict[str, Any]]) -> bool:
        which, arguments = given
        arguments = {name: self.named(value) for name, value in arguments.items()}
        # A name may be shown; a value, or the reference of a token, may not.
        names = any(
            type(value) is str and SECRET in value
            for name, value in arguments.items()
            if name not in ("value", "ref")
        )
        error = self._installed.refusal_of(lambda: self.calls[which](**arguments), names=names)
        return error is not None


@contextmanager
def _acting() -> Iterator[Check]:
    with installation() as installed:
        yield _Acts(installed).check


_RUN: Final = or_evil(
    just("@waiting", "@finished", "@waiting", "@finished", "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d")
)
_NAME: Final = or_evil(just("paid", "approved"))
_SAID: Final = or_evil(just("ops", "because"))
_LIMIT: Final = or_evil(lambda s: s.below(1_100))


def _always(**draws: Draw) -> Draw:
    return lambda source: {name: draw(source) for name, draw in draws.items()}


def _some(**draws: Draw) -> Draw:
    return lambda source: source.options(**draws)


_MEANT: Final[dict[str, Draw]] = {
    "state": or_evil(just("ready", "failed", "scheduled", "cancelled")),
    "task": or_evil(just("nothing", "other")),
    "queue": or_evil(just("default", "mail")),
    "tag": _NAME,
    "created_after": or_evil(instants),
    "created_before": or_evil(instants),
    "limit": _LIMIT,
    "dry_run": just(True, True, True, False),
    "request_id": _NAME,
    "why": _SAID,
}
_ACTS: Final[dict[str, tuple[Draw, Draw]]] = {
    "signal": (_always(run_id=_RUN, name=_NAME, value=objects), _some(idempotency_key=_NAME)),
    "decide": (
        _always(run_id=_RUN, name=_NAME, value=objects, by=_SAID),
        _some(why=_SAID, idempotency_key=_NAME),
    ),
    "token": (
        _always(ref=or_evil(just("@token", "wht_x")), value=objects), _some(idempotency_key=_NAME)
    ),
    "create token": (_always(), _some(timeout=or_evil(durations))),
    "cancel": (_always(run_id=or_evil(just("@finished"))), _some(by=_SAID, why=_SAID)),
    "rerun": (
        _always(run_id=_RUN, by=_SAID),
        _some(boundaries=or_evil(just("all", "none", "paid")), why=_SAID, request_id=_NAME),
    ),
    "list": (
        _always(),
        _some(
            state=or_evil(just("ready", "failed")), task=_NAME, queue=or_evil(just("mail")),
            limit=_LIMIT, before=_RUN,
        ),
    ),
    "show": (_always(run_id=_RUN), _some()),
    "waits": (
        _always(),
        _some(
            run_id=_RUN, queue=or_evil(just("mail")), kind=or_evil(just("signal", "timer")),
            limit=_LIMIT, after=_RUN,
        ),
    ),
    "checkpoints": (_always(run_id=_RUN), _some(limit=_LIMIT, after=_NAME)),
    "timeline": (_always(run_id=_RUN), _some(limit=_LIMIT, after=or_evil(just("0:0:0:x",
    "1:2:3:")))),
    "export": (_always(run_id=_RUN), _some()),
    "pause": (_always(queue=or_evil(just("mail")), by=_SAID), _some(why=_SAID)),
    "resume": (_always(queue=or_evil(just("mail")), by=_SAID), _some(why=_SAID)),
    "rehint": (_always(), _some(queue=or_evil(just("mail")))),
    "cancel many": (_always(by=_SAID), _some(**_MEANT)),
    "rerun many": (
        _always(by=_SAID),
        _some(**_MEANT, error_type=_NAME, boundaries=or_evil(just("all", "none", "paid"))),
    ),
    "reset": (_always(task=_NAME, key=_NAME), _some()),
    "run": (_always(run_id=_RUN), _some()),
    "result": (_always(run_id=just("@finished"), timeout=or_evil(just(0, timedelta(0)))), _some()),
    "dead letters": (_always(), _some(queue=or_evil(just("mail")))),
}  # fmt: skip


def _act(source: Source) -> tuple[str, dict[str, Any]]:
    which = source.pick(sorted(_ACTS))
    needed, more = _ACTS[which]
    return which, needed(source) | more(source)


KINDS: Final = (
    Kind(
        name="payloads",
        share=6_000,
        draw=_payload,
        corpus=[(name, each) for name in ("plain", "model", "dataclass") for each in OBJECTS],
        rig=_payloads,
    ),
    Kind(
        name="options",
        share=6_000,
        draw=_options,
        corpus=[
            {name: each}
            for name in ("queue", "key", "session", "tags", "after", "run_at", "retry")
            for each in OBJECTS
        ],
        rig=_enqueueing,
    ),
    Kind(
        name="acts",
        share=12_000,
        draw=_act,
        corpus=[
            *(("signal", {"run_id": "@waiting", "name": "n", "value": each}) for each in OBJECTS),
            *(("token", {"ref": each, "value": 1}) for each in OBJECTS),
            *(("timeline", {"run_id": "@waiting", "after": each}) for each in OBJECTS),
            *(("rerun", {"run_id": "@finished", "by": "ops", "boundaries": b}) for b in OBJECTS),
        ],
        rig=_acting,
    ),
)
