"""Batch handlers: what can be one, how it is typed, and what its items say and take."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, assert_type

import pytest

from tests.handlers.runs import a_claimed_run
from workhorse import AsyncContext, BatchItem, Context, RetryPolicy, current_context
from workhorse.errors import ConfigurationError, InvalidInstantError, NonRetryableError
from workhorse.handlers import batches
from workhorse.handlers.context import ActivationCore, current
from workhorse.handlers.registry import LARGEST_BATCH, TaskRegistry
from workhorse.handlers.signals import Stopped, StopReason, StopSwitch
from workhorse.handlers.tasks import Task

if TYPE_CHECKING:
    from workhorse import BatchItem as Hidden


@dataclass
class Order:
    id: int


class Line(TypedDict):
    sku: str


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


def refusal(handler: Callable[..., Any], **arguments: Any) -> str:
    registry = TaskRegistry()
    with pytest.raises(ConfigurationError) as raised:
        registry.register(handler, "t", **{"batch": 10, **arguments})
    assert len(registry) == 0
    return str(raised.value)


# -- what can be one -----------------------------------------------------------------------------


def plain(items: list[BatchItem[Order]]) -> list[str]: ...  # type: ignore[empty-body]
async def waits(items: list[BatchItem[Order]]) -> list[str]: ...  # type: ignore[empty-body]
def errors_too(items: list[BatchItem[Order]]) -> list[str | ValueError] | None: ...
def a_tuple(items: list[batches.BatchItem[Order]]) -> tuple[str, ...]: ...  # type: ignore[empty-body]
def sequence(items: list[BatchItem[Order]]) -> Sequence[str | Exception]: ...  # type: ignore[empty-body]
def awaitable(items: list[BatchItem[Order]]) -> Awaitable[list[str]]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    "handler",
    [plain, waits, errors_too, a_tuple, sequence, awaitable],
    ids=lambda each: each.__name__,
)
def test_payload_and_result_are_those_of_a_single_run(
    registry: TaskRegistry, handler: Callable[..., Any]
) -> None:
    task = registry.register(handler, batch=10)
    task.check()

    assert task.batch == 10
    assert task.is_async == (handler in (waits, awaitable))
    assert task.encode_payload(Order(7)) == '{"id":7}'
    assert task.decode('{"id":7}') == Order(7)
    with pytest.raises(NonRetryableError):
        task.decode('{"id":"seven"}')
    assert task.encode_result("done") == '"done"'
    with pytest.raises(Exception, match="result of task"):
        task.encode_result(7)


def results_of_any_kind(items: list[BatchItem[Line]]) -> list[Any]: ...  # type: ignore[empty-body]
def no_results(items: list[BatchItem[Line]]) -> None: ...
async def no_results_later(items: list[BatchItem[Line]]) -> None: ...
def only_errors(items: list[BatchItem[Line]]) -> list[ValueError]: ...  # type: ignore[empty-body]
def says_nothing(items: list[BatchItem[Line]]): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    "handler",
    [results_of_any_kind, no_results, no_results_later, only_errors, says_nothing],
    ids=lambda each: each.__name__,
)
def test_a_result_that_no_annotation_names_is_any_json(
    registry: TaskRegistry, handler: Callable[..., Any]
) -> None:
    task = registry.register(handler, batch=1)
    task.check()

    assert task.decode('{"sku":"a"}') == {"sku": "a"}
    assert task.encode_result({"any": ["thing"]}) == '{"any":["thing"]}'
    assert task.encode_result(None) == "null"


def test_an_item_of_nothing_in_particular_takes_any_payload(registry: TaskRegistry) -> None:
    def handler(items: list[BatchItem]) -> None: ...  # type: ignore[type-arg]

    task = registry.register(handler, batch=2)

    assert task.encode_payload({"a": [1]}) == '{"a":[1]}'
    assert task.encode_payload() == "null"


def test_annotations_may_name_what_is_defined_later_or_imported_for_the_type_checker(
    registry: TaskRegistry,
) -> None:
    def later(items: list[BatchItem[Late]]) -> list[Late]: ...  # type: ignore[empty-body]

    @dataclass
    class Late:
        number: int

    task = registry.register(later, batch=2)
    assert task.decode('{"number":1}') == Late(1)

    def hidden(items: list[Hidden[int]]) -> None: ...

    assert "batches" in refusal(hidden)  # that name says nothing to anybody at run time

    namespace: dict[str, Any] = {}
    source = (
        "from __future__ import annotations\n"
        "def handler(items: list[BatchItem[int]]) -> None: ...\n"
        "def described(items: list[workhorse.BatchItem[Missing]]) -> None: ...\n"
    )
    exec(source, namespace)  # noqa: S102 - a module that imports nothing at run time
    assert registry.register(namespace["handler"], batch=2).decode("5") == 5
    described = registry.register(namespace["described"], batch=2)
    with pytest.raises(ConfigurationError, match="cannot be resolved"):
        described.check()


def takes_nothing() -> None: ...
def takes_a_context(ctx: Context, items: list[BatchItem[int]]) -> None: ...
async def takes_a_context_alone(ctx: AsyncContext) -> None: ...
def takes_one(item: BatchItem[int]) -> None: ...
def takes_orders(orders: list[Order]) -> None: ...
def takes_anything(items): ...  # type: ignore[no-untyped-def]
def takes_a_tuple(items: tuple[BatchItem[int], ...]) -> None: ...
def takes_two(items: list[BatchItem[int]], more: int) -> None: ...
def has_a_default(items: list[BatchItem[int]] = []) -> None: ...  # noqa: B006 - refused
def returns_one(items: list[BatchItem[int]]) -> str: ...  # type: ignore[empty-body]
def returns_by_key(items: list[BatchItem[int]]) -> dict[str, int]: ...  # type: ignore[empty-body]
def returns_a_pair(items: list[BatchItem[int]]) -> tuple[int, str]: ...  # type: ignore[empty-body]
async def returns_a_bool(items: list[BatchItem[int]]) -> bool | None: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (takes_nothing, "takes nothing"),
        (takes_a_context, "takes a context"),
        (takes_a_context_alone, "takes a context"),
        (takes_one, "annotated otherwise"),
        (takes_orders, "annotated otherwise"),
        (takes_anything, "annotated otherwise"),
        (takes_a_tuple, "annotated otherwise"),
        (takes_two, "takes \\(items, more\\)"),
        (has_a_default, "has a default"),
        (returns_one, "returns <class 'str'>; a batch handler returns a list of results"),
        (returns_by_key, "returns dict\\[str, int\\]"),
        (returns_a_pair, "returns tuple\\[int, str\\]"),
        (returns_a_bool, "returns bool"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_can_never_work_is_refused_where_it_is_written(
    handler: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem) as raised:
        TaskRegistry().register(handler, "t", batch=10)
    assert f"{__file__}:" in str(raised.value)


def test_a_wrapped_handler_is_judged_by_what_it_wraps(registry: TaskRegistry) -> None:
    def logged(handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def wrapper(*args: Any) -> Any:
            return handler(*args)

        return wrapper

    assert registry.register(logged(plain), batch=3).decode('{"id":1}') == Order(1)


def test_a_handler_of_single_runs_is_not_handed_items(registry: TaskRegistry) -> None:
    with pytest.raises(ConfigurationError, match="batch=") as raised:
        registry.register(plain)
    assert f"{__file__}:" in str(raised.value)
    assert registry.register(takes_orders).batch is None


@pytest.mark.parametrize("batch", [0, -1, LARGEST_BATCH + 1, True, 2.0, "10"])
def test_a_size_that_no_claim_has_is_refused(batch: Any) -> None:
    assert f"1 to {LARGEST_BATCH}" in refusal(plain, batch=batch)


def test_a_batch_is_not_handled_in_another_process() -> None:
    assert "leave `batch` or `executor` out" in refusal(plain, executor="process")


# -- what a type checker knows: mypy reads this, and it is run as well ----------------------------

TYPED = TaskRegistry()


@TYPED.task("typed.values", batch=10)
def typed_values(items: list[BatchItem[Order]]) -> list[str]:
    assert_type(items[0].payload, Order)
    assert_type(items[0].succeed("done"), bool)
    return [str(item.payload.id) for item in items]


@TYPED.task("typed.errors", batch=10)
async def typed_errors(items: list[BatchItem[Order]]) -> list[str | BaseException]:
    assert_type(await items[0].cancelled.wait_async(0), bool)
    return []


@TYPED.task("typed.perhaps", batch=10)
async def typed_perhaps(items: list[BatchItem[Order]]) -> list[str | ValueError] | None:
    return None


@TYPED.task("typed.nothing", batch=10)
def typed_nothing(items: list[BatchItem[Order]]) -> None:
    pass


@TYPED.task("typed.nothing.async", batch=10)
async def typed_nothing_async(items: list[BatchItem[Order]]) -> None:
    pass


@TYPED.task("typed.single")
def typed_single(orders: list[int]) -> list[str]:
    return []


def test_producers_see_the_payload_and_the_result_of_one_run() -> None:
    assert_type(typed_values, Task[Order, str])
    assert_type(typed_errors, Task[Order, str])
    assert_type(typed_nothing, Task[Order, Any])
    assert_type(typed_nothing_async, Task[Order, Any])
    assert_type(typed_single, Task[list[int], list[str]])
    assert_type(typed_perhaps, Task[Order, str])
    assert typed_values.prepare(Order(1)).run.payload == '{"id":1}'


# -- items ---------------------------------------------------------------------------------------


class Noted:
    """Takes decisions, and answers that each of them counts."""

    def __init__(self) -> None:
        self.stopping = StopSwitch("a batch")
        self.decisions: list[tuple[str, object]] = []

    def decided(self, core: ActivationCore) -> bool:
        return bool(self.decisions)

    def succeed(self, core: ActivationCore, value: object) -> bool:
        self.decisions.append(("succeed", value))
        return True

    def fail(self, core: ActivationCore, error: BaseException) -> bool:
        self.decisions.append(("fail", error))
        return False


def an_item(
    attempt: int = 1, retry: RetryPolicy | None = None
) -> tuple[BatchItem[str], ActivationCore, Noted]:
    core = ActivationCore(a_claimed_run(attempt=attempt, retry=retry or RetryPolicy()))
    noted = Noted()
    return BatchItem(core, "payload", noted), core, noted


def test_an_item_says_what_a_context_says_of_its_run() -> None:
    item, core, _ = an_item(attempt=3, retry=RetryPolicy(max_attempts=3))

    assert (item.payload, item.attempt, item.is_final_attempt) == ("payload", 3, True)
    assert (item.run, item.lease.fence, item.queue_ms) == (core.run, 4, 2_000)
    assert item.run.id in repr(item)
    assert not an_item()[0].is_final_attempt


def test_an_item_passes_on_what_is_decided() -> None:
    item, _, noted = an_item()
    error, decided = ValueError(), [item.decided]

    assert item.succeed() is True
    assert item.succeed([1]) is True
    assert item.fail(error) is False
    assert [*decided, item.decided] == [False, True]
    assert noted.decisions == [("succeed", None), ("succeed", [1]), ("fail", error)]


def test_a_runs_own_signal_is_its_own_and_the_workers_is_the_batchs() -> None:
    item, core, noted = an_item()
    assert (bool(item.cancelled), bool(item.stopping)) == (False, False)

    core.cancelled.set(StopReason.CANCELLED)
    assert item.cancelled.reason is StopReason.CANCELLED
    assert item.stopping.reason is None
    noted.stopping.set(StopReason.SHUTDOWN)

    assert item.stopping.wait(0)
    for signal, said in ((item.cancelled, "cancelled"), (item.stopping, "a batch")):
        with pytest.raises(Stopped, match=said):
            signal.raise_if_set()


def test_a_signal_is_waited_for_in_threads_and_on_event_loops() -> None:
    item, core, _ = an_item()
    assert item.cancelled.wait(0) is False
    with pytest.raises(InvalidInstantError):
        item.cancelled.wait(-1)

    async def on_a_loop() -> bool:
        with pytest.raises(ConfigurationError, match="wait_async"):
            item.cancelled.wait(0)
        assert await item.cancelled.wait_async(0) is False
        asyncio.get_running_loop().call_soon(core.cancelled.set, StopReason.TIMEOUT)
        return await item.cancelled.wait_async(10)

    assert asyncio.run(on_a_loop()) is True


def test_a_batch_handler_has_no_context_not_even_that_of_who_calls_it(
    registry: TaskRegistry,
) -> None:
    @registry.task("t", batch=2)
    def handler(items: list[BatchItem[str]]) -> None:
        current_context()

    before = current.set(Context(ActivationCore(a_claimed_run())))
    try:
        with pytest.raises(ConfigurationError, match="a batch handler is running here"):
            batches.call(handler, [an_item()[0]])
    finally:
        current.reset(before)


def test_a_call_of_a_task_calls_its_handler() -> None:
    core = ActivationCore(a_claimed_run())

    assert typed_values([BatchItem(core, Order(5), Noted())]) == ["5"]
