"""What handlers return, store and wait for: any object, under any name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from tests.fuzz.evil import OBJECTS, SECRET, just, objects, or_evil, texts
from tests.fuzz.judging import judge_message, refusal_of
from tests.fuzz.kind import Check, Kind
from tests.fuzz.kinds.values import same
from tests.fuzz.rigs import installation
from tests.fuzz.source import Source
from workhorse import Context, RetryPolicy
from workhorse.domain.runs import RunState
from workhorse.errors import RunFailedError


@contextmanager
def _results() -> Iterator[Check]:
    with installation() as installed:
        given: list[Any] = []

        @installed.app.task("returns", retry=RetryPolicy(max_attempts=1))
        def returns() -> Any:
            return given[0]

        def check(value: Any) -> bool:
            given[:] = [value]
            try:
                run = returns.run_now()
            except RunFailedError as error:
                if error.reason != "not_retryable":
                    raise
                judge_message(str(error), longest=2_000)
                return True
            view = run.view()
            assert view.state is RunState.SUCCEEDED
            assert same(run.result(timeout=0), value)
            return False

        yield check


@contextmanager
def _boundaries() -> Iterator[Check]:
    with installation() as installed:
        given: list[Any] = []
        found: list[Exception] = []
        refused: list[bool] = []

        @installed.app.task("stores", retry=RetryPolicy(max_attempts=1))
        def stores(ctx: Context) -> None:
            name, call, value = given[0]
            calls: dict[str, Any] = {
                "checkpoint": lambda: ctx.checkpoint(name, lambda: value),
                "input": lambda: ctx.checkpoint(name, lambda: 1, input=value),
                "progress": lambda: ctx.progress(value),
                "sleep": lambda: ctx.sleep(name, value),
                "until": lambda: ctx.sleep_until(name, value),
                "look": lambda: ctx.get_checkpoint(name),
                "token": lambda: ctx.wait_for_token("token", value),
                "any": lambda: ctx.wait_any(value),
                "child": lambda: ctx.child(name, value),
                "timeout": lambda: ctx.token(name, timeout=value),
            }
            shown = (type(name) is str and SECRET in name) or call in ("any", "child")
            try:
                refused.append(refusal_of(calls[call], names=shown) is not None)
            except Exception as error:
                found.append(error)
                raise

        def check(one: tuple[Any, str, Any]) -> bool:
            given[:], found[:], refused[:] = [one], [], []
            with suppress(RunFailedError):
                run = stores.run_now()
                installed.app.cancel(run.id)  # it may sleep until next year
            if found:
                raise found[0]
            return bool(refused and refused[0])

        yield check


def _boundary(source: Source) -> tuple[Any, str, Any]:
    call = source.pick(
        ["checkpoint", "checkpoint", "input", "progress", "sleep", "until", "look", "token", "any",
         "child", "timeout"]
    )  # fmt: skip
    value = or_evil(just(timedelta(days=1)))(source) if source.maybe(3) else objects(source)
    return or_evil(texts)(source), call, value


KINDS: Final = (
    Kind(name="results", share=400, draw=objects, corpus=OBJECTS[::3], rig=_results),
    Kind(
        name="boundaries",
        share=400,
        draw=_boundary,
        corpus=[("name", call, each) for call in ("checkpoint", "sleep") for each in OBJECTS[::6]],
        rig=_boundaries,
    ),
)
