"""Tasks: values in and out, and the call of the handler."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest

from tests.handlers.runs import a_claimed_run
from workhorse.domain.runs import Reason
from workhorse.errors import ConfigurationError, NonRetryableError, UnstorableValueError
from workhorse.handlers.context import (
    ActivationCore,
    AsyncContext,
    Context,
    current,
    current_context,
)
from workhorse.handlers.failures import reason_for
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tasks import Task


def task_of(handler: Any) -> Task[Any, Any]:
    return TaskRegistry().register(handler, "orders.ship")


@pytest.fixture
def core() -> ActivationCore:
    return ActivationCore(a_claimed_run())


def call(task: Task[Any, Any], core: ActivationCore, payload: object = None) -> object:
    if task.is_async:
        return asyncio.run(task.invoke_async(core, payload))
    return task.invoke(core, payload)


# -- calling -------------------------------------------------------------------------------------


def test_calling_a_task_calls_its_handler() -> None:
    @TaskRegistry().task()
    def add(payload: dict[str, int]) -> int:
        return payload["a"] + payload["b"]

    assert add({"a": 1, "b": 2}) == 3
    assert add(payload={"a": 1, "b": 2}) == 3


def test_a_handler_is_handed_what_its_shape_says(core: ActivationCore) -> None:
    seen: list[tuple[str, list[object]]] = []

    def nothing() -> None:
        seen.append(("nothing", []))

    def only_payload(payload: int) -> None:
        seen.append(("payload", [payload]))

    def only_context(ctx: Context) -> None:
        seen.append(("context", [type(ctx), ctx.run.id]))

    def both(ctx: Context, payload: int) -> None:
        seen.append(("both", [type(ctx), payload]))

    async def async_both(ctx: AsyncContext, payload: int) -> None:
        seen.append(("async", [type(ctx), payload]))

    for handler in (nothing, only_payload, only_context, both, async_both):
        call(task_of(handler), core, 7)

    assert seen == [
        ("nothing", []),
        ("payload", [7]),
        ("context", [Context, core.run.id]),
        ("both", [Context, 7]),
        ("async", [AsyncContext, 7]),
    ]


def test_case_18_the_context_can_be_asked_for_and_does_not_leak(core: ActivationCore) -> None:
    def deep() -> object:
        return current_context().run.id

    def plain() -> object:
        return deep()

    async def coroutine() -> object:
        await asyncio.sleep(0)
        return deep()

    def fails() -> None:
        raise KeyError

    assert call(task_of(plain), core) == core.run.id
    assert call(task_of(coroutine), core) == core.run.id
    with pytest.raises(KeyError):
        call(task_of(fails), core)
    assert current.get(None) is None


def test_case_18_an_async_handler_leaves_no_context_with_whoever_awaited_it(
    core: ActivationCore,
) -> None:
    async def handler() -> object:
        return current_context().run.id

    async def caller() -> tuple[object, object]:
        return await task_of(handler).invoke_async(core, None), current.get(None)

    assert asyncio.run(caller()) == (core.run.id, None)


def test_case_18_two_async_handlers_at_once_see_each_its_own_context() -> None:
    cores = [ActivationCore(a_claimed_run()) for _ in range(2)]
    both = asyncio.Event()

    async def handler(ctx: AsyncContext) -> tuple[object, object]:
        if ctx.run.id == cores[0].run.id:
            await both.wait()
        both.set()
        await asyncio.sleep(0)
        return ctx.run.id, current_context().run.id

    async def run() -> list[object]:
        task = task_of(handler)
        calls = [asyncio.create_task(task.invoke_async(core, None)) for core in cores]
        return list(await asyncio.gather(*calls))

    assert asyncio.run(run()) == [(core.run.id, core.run.id) for core in cores]


def test_an_activation_closed_from_elsewhere_ends_quietly(core: ActivationCore) -> None:
    """As when a loop is torn down: the coroutine is closed outside the task that began it."""

    async def handler() -> None:
        await asyncio.get_running_loop().create_future()

    activation: Coroutine[Any, Any, object] = task_of(handler).invoke_async(core, None)

    async def begin() -> None:
        activation.send(None)

    asyncio.run(begin())
    activation.close()
    assert current.get(None) is None


def test_case_18_a_coroutine_out_of_a_plain_function_is_refused_not_dropped(
    core: ActivationCore,
) -> None:
    async def inner() -> int:
        return 1

    def handler():  # type: ignore[no-untyped-def]
        return inner()

    task = task_of(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "never awaited" would be one
        with pytest.raises(NonRetryableError, match=r"returned a coroutine.*async def") as raised:
            call(task, core)

    assert reason_for(task, raised.value) is Reason.NOT_RETRYABLE
    assert f"{__file__}:" in str(raised.value)


def test_case_18_any_other_awaitable_out_of_a_plain_function_is_refused_too(
    core: ActivationCore,
) -> None:
    class Promise:
        def __await__(self) -> Any:
            raise NotImplementedError

    with pytest.raises(NonRetryableError, match="returned a Promise"):
        call(task_of(lambda: Promise()), core)


def test_case_18_an_awaitable_that_is_announced_is_awaited(core: ActivationCore) -> None:
    async def inner(payload: int) -> int:
        await asyncio.sleep(0)
        return payload + 1

    def handler(payload: int) -> Awaitable[int]:
        return inner(payload)

    task = task_of(handler)
    assert task.is_async is True
    assert call(task, core, 1) == 2
    assert task.encode_result(2) == "2"
    with pytest.raises(UnstorableValueError):
        task.encode_result("2")


def test_case_18_an_announced_awaitable_that_does_not_come_is_a_value(core: ActivationCore) -> None:
    def handler() -> Awaitable[int]:
        return 5  # type: ignore[return-value]

    assert call(task_of(handler), core) == 5


def test_case_18_a_generator_is_refused_as_payload_and_as_result(core: ActivationCore) -> None:
    task = task_of(lambda payload: (number for number in range(3)))

    with pytest.raises(UnstorableValueError, match=r"payload of task 'orders.ship'.*generator"):
        task.prepare(number for number in range(3))
    returned = call(task, core)
    with pytest.raises(UnstorableValueError, match=r"result of task 'orders.ship'.*generator"):
        task.encode_result(returned)


def test_case_18_a_coroutine_as_payload_or_result_is_refused_without_a_warning() -> None:
    async def inner() -> None: ...

    task = task_of(lambda payload: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnstorableValueError, match="coroutine"):
            task.prepare(inner())
        with pytest.raises(UnstorableValueError, match="coroutine"):
            task.encode_result(inner())


# -- values --------------------------------------------------------------------------------------


def test_a_payload_left_out_is_null_or_the_parameters_default() -> None:
    def needs(payload: int) -> None: ...
    def has_default(payload: int = 5) -> None: ...
    def takes_none() -> None: ...

    assert task_of(lambda payload: None).prepare().run.payload == "null"
    assert task_of(has_default).prepare().run.payload == "5"
    assert task_of(takes_none).prepare().run.payload == "null"
    assert task_of(takes_none).prepare(None).run.payload == "null"
    with pytest.raises(UnstorableValueError, match=r"NoneType, where .* takes int"):
        task_of(needs).prepare()


def test_a_handler_without_payload_takes_none() -> None:
    with pytest.raises(UnstorableValueError, match="takes None"):
        task_of(lambda: None).prepare({"id": 1})


def test_a_payload_that_no_longer_fits_ends_the_run_without_retry() -> None:
    def handler(payload: dict[str, int]) -> None: ...

    task = task_of(handler)
    with pytest.raises(NonRetryableError, match=r"\$\.id.*handler was not called") as raised:
        task.decode('{"id":"secret"}')

    assert reason_for(task, raised.value) is Reason.NOT_RETRYABLE
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_payload_is_decoded_afresh_for_each_activation() -> None:
    task = task_of(lambda payload: None)
    first, second = task.decode('{"a":[1]}'), task.decode('{"a":[1]}')
    assert first == second == {"a": [1]}
    assert first["a"] is not second["a"]


def test_json_text_from_outside_is_checked_like_any_payload() -> None:
    def handler(payload: list[int]) -> None: ...

    task = task_of(handler)
    assert task.parse_payload(" [1, 2] ") == [1, 2]
    for text, problem in {
        "[1,": "no JSON: .* line 1, column 4",
        '["a"]': r"\$\[0\]",
        "": "no JSON",
        "[" * 100_000: "nested too deep",
        "1" * 5_000: "too long",
    }.items():
        with pytest.raises(UnstorableValueError, match=problem):
            task.parse_payload(text)


def test_a_stored_result_is_read_by_the_handlers_annotation() -> None:
    def handler() -> list[int]: ...  # type: ignore[empty-body]

    task = task_of(handler)
    assert task.decode_result("[1]") == [1]
    with pytest.raises(UnstorableValueError, match="result of task"):
        task.decode_result("null")


def test_check_resolves_what_otherwise_waits_for_use() -> None:
    def handler(payload: Gone) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    task = task_of(handler)
    with pytest.raises(ConfigurationError, match="'Gone'"):
        task.check()
    with pytest.raises(ConfigurationError, match="'Gone'"):
        task.decode("1")


def test_tasks_of_plain_json_do_not_import_pydantic() -> None:
    """Importing it would cost a command line more than all else it does."""
    program = """
import sys
from workhorse.handlers.registry import TaskRegistry
registry = TaskRegistry()

@registry.task()
def add(payload: dict[str, list[int | float | None]]) -> int | None: ...

@registry.task()
async def anything(ctx, payload): ...

registry.check()
add.decode(add.prepare({"a": [1]}).run.payload)
add.encode_result(5)
anything.prepare({"a": 1})
print([name for name in sys.modules if name.startswith(("pydantic", "sqlalchemy", "boto"))])
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "[]"
