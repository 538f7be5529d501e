"""The tasks that an app knows, by name and by alias.

Source: docs/design.md, section 4; docs/cases.md, case 19.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from workhorse.domain.names import check_priority, check_queue, check_task
from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy
from workhorse.domain.runs import DEFAULT_PRIORITY
from workhorse.domain.showing import shown
from workhorse.errors import ConfigurationError, UnknownTaskError
from workhorse.handlers.batch_signatures import BatchSignature, refuse_items
from workhorse.handlers.batches import BatchItem
from workhorse.handlers.context import AsyncContext, Context
from workhorse.handlers.places import check_named
from workhorse.handlers.producing import Producer, check_limit, check_retry
from workhorse.handlers.signatures import Signature
from workhorse.handlers.tasks import Task, TaskOptions

P = TypeVar("P")
R = TypeVar("R")

DEFAULT_QUEUE: Final = "default"
LARGEST_BATCH: Final = 200
"""Runs that a batch handler is handed at most: as many as one claim takes."""


class TaskArguments(TypedDict, total=False):
    """What `app.task(name, ...)` takes; what is left out or None is the default."""

    queue: str | None
    """Where its runs go: 1 to 60 characters of `a-z0-9_-`. Default: `default`."""
    retry: RetryPolicy | None
    """Default: 10 attempts, exponential from 1 s to 5 min, full jitter."""
    timeout: timedelta | None
    """How long an attempt may be active. Default: no limit."""
    deadline: timedelta | None
    """How long the whole run may take in real time, from the enqueue. Default: no limit."""
    priority: int | None
    """0 to 100, higher first. Default: 50."""
    aliases: Iterable[str]
    """Other names whose runs it takes: former ones, after a rename."""
    not_retryable: Collection[type[BaseException]]
    """Errors that end the run at once, whatever attempts are left."""
    batch: int | None
    """Hand the handler up to so many runs at once, 1 to 200, as a list of `BatchItem`; each is
    settled by itself. Default: one by one."""
    min_time_left: timedelta | None
    """On Lambda: a run of it is begun only while the invocation has so much time left. Default:
    the setting `min_time_left_seconds`."""
    executor: Literal["process"] | None
    """`process`: a plain handler is called in another process, for work that keeps a core busy.
    Default: async handlers on the worker's event loop, plain ones in threads."""


class TaskDecorator:
    """What `app.task(...)` returns: registers the handler below it and puts a `Task` in place."""

    __slots__ = ("_arguments", "_name", "_registry")

    def __init__(self, registry: TaskRegistry, name: str | None, arguments: TaskArguments) -> None:
        self._registry = registry
        self._name = name
        self._arguments = arguments

    # Batches come first, since Callable[[P], R] takes such a handler too, with P its list; and
    # async forms before plain ones, for there R may be a coroutine.
    @overload
    def __call__(
        self, handler: Callable[[list[BatchItem[P]]], Awaitable[None]], /
    ) -> Task[P, Any]: ...
    @overload
    def __call__(
        self,
        handler: Callable[[list[BatchItem[P]]], Awaitable[Sequence[R | BaseException] | None]],
        /,
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[list[BatchItem[P]]], None], /) -> Task[P, Any]: ...
    @overload
    def __call__(
        self, handler: Callable[[list[BatchItem[P]]], Sequence[R | BaseException] | None], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[AsyncContext, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[AsyncContext], Awaitable[R]], /) -> Task[None, R]: ...
    @overload
    def __call__(self, handler: Callable[[Context], R], /) -> Task[None, R]: ...
    @overload
    def __call__(self, handler: Callable[[P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, handler: Callable[[], Awaitable[R]], /) -> Task[None, R]: ...
    @overload
    def __call__(self, handler: Callable[[], R], /) -> Task[None, R]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Task[Any, Any]:
        """Register the handler.

        Raises:
            ConfigurationError: It cannot be a handler, or its name or an alias is taken.
            InvalidNameError: The task's name, an alias, the queue or the priority is not allowed.
            InvalidInstantError: The time-out or the deadline is out of range.
        """
        return self._registry.register(handler, self._name, **self._arguments)


class TaskRegistry:
    """Tasks by name and alias. Safe in threads; a name is never given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._by_name: dict[str, Task[Any, Any]] = {}
        self._producer: Producer | None = None

    def task(self, name: str | None = None, **arguments: Unpack[TaskArguments]) -> TaskDecorator:
        """Return a decorator that registers a handler; see `TaskArguments`.

        Args:
            name: 1 to 200 printable characters, stable across deployments: runs are stored under
                it. Default: the function's own name.
        """
        if callable(name):
            raise ConfigurationError("write the decorator with parentheses: @app.task()")
        return TaskDecorator(self, name, arguments)

    def register(
        self,
        handler: Callable[..., Any],
        name: str | None = None,
        *,
        queue: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        priority: int | None = None,
        aliases: Iterable[str] = (),
        not_retryable: Collection[type[BaseException]] = (),
        batch: int | None = None,
        min_time_left: timedelta | None = None,
        executor: Literal["process"] | None = None,
    ) -> Task[Any, Any]:
        """Make a task of a handler and keep it under its name and aliases; see `task`.

        Raises: As the decorator.
        """
        if isinstance(handler, Task):
            raise ConfigurationError(
                f"{handler!r} is a task already; other names for it are its aliases"
            )
        size = None if batch is None else _batch(batch)
        if size is not None:
            signature: Signature = BatchSignature(handler)
        else:
            signature = Signature(handler)
            refuse_items(signature)
        task: Task[Any, Any] = Task(
            check_task(signature.default_name() if name is None else name),
            tuple(dict.fromkeys(check_task(alias) for alias in _listed("aliases", aliases))),
            signature,
            TaskOptions(
                queue=DEFAULT_QUEUE if queue is None else check_queue(queue),
                retry=DEFAULT_RETRY if retry is None else check_retry(retry),
                timeout=None if timeout is None else check_limit("timeout", timeout),
                deadline=None if deadline is None else check_limit("deadline", deadline),
                priority=DEFAULT_PRIORITY if priority is None else check_priority(priority),
                not_retryable=_error_types(not_retryable),
                batch=size,
                min_time_left=(
                    None if min_time_left is None else check_limit("min_time_left", min_time_left)
                ),
                executor=_executor(executor, signature, batch),
            ),
        )
        with self._lock:
            names = (task.name, *task.aliases)
            for taken in names:
                if names.count(taken) > 1:
                    raise ConfigurationError(f"task '{taken}' names itself as an alias")
                if (owner := self._by_name.get(taken)) is not None:
                    raise ConfigurationError(
                        f"two handlers for task '{taken}': {owner.where} has the name, and stays; "
                        f"give {task.where} a name of its own"
                    )
            if self._producer is not None:
                task.bind(self._producer)
            self._tasks[task.name] = task
            # A new dict each time, so that readers need no lock.
            self._by_name = {**self._by_name, **dict.fromkeys(names, task)}
        return task

    def bind(self, producer: Producer) -> None:
        """Say who stores the runs of these tasks, and of those still to come."""
        with self._lock:
            self._producer = producer
            for task in self._tasks.values():
                task.bind(producer)

    def get(self, name: str) -> Task[Any, Any] | None:
        """Return the task of that name or alias; None where there is none."""
        return self._by_name.get(name)

    def require(self, name: str) -> Task[Any, Any]:
        """Return the task of that name or alias.

        Raises:
            UnknownTaskError: There is none; names that look like it are shown.
        """
        task = self._by_name.get(name)
        if task is None:
            raise UnknownTaskError(self._unknown(name))
        return task

    def names(self) -> tuple[str, ...]:
        """Return all names and aliases, sorted: what a worker may claim."""
        return tuple(sorted(self._by_name))

    def check(self) -> None:
        """Resolve all annotations and build all codecs; a worker does so before it starts.

        Raises:
            ConfigurationError: An annotation names nothing, or is no type that JSON can carry.
        """
        for task in self:
            task.check()

    def __iter__(self) -> Iterator[Task[Any, Any]]:
        return iter(tuple(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def _unknown(self, name: object) -> str:
        import difflib  # only where somebody mistyped

        typed = name[:200] if isinstance(name, str) else ""
        close = difflib.get_close_matches(typed, self._by_name, n=3)
        if close:
            advice = "did you mean " + " or ".join(f"'{known}'" for known in close) + "?"
        else:
            advice = f"{len(self._by_name)} names are known; is its module imported?"
        return f"no task {shown(name)} is registered; {advice}"


def _listed(what: str, given: Iterable[str]) -> Iterable[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what} must be a list of names; got {type(given).__name__}")
    return given


def _batch(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= LARGEST_BATCH:
        raise ConfigurationError(
            f"batch must be a whole number from 1 to {LARGEST_BATCH}; got {given!r:.80}"
        )
    return given


def _executor(given: object, signature: Signature, batch: object) -> Literal["process"] | None:
    if given is None:
        return None
    if given != "process":
        raise ConfigurationError(f"executor must be 'process' or left out; got {given!r:.80}")
    if signature.is_async:
        raise ConfigurationError(
            f"{signature.where} is async, and an executor of its own is for plain functions: "
            "define it with `def`, or leave `executor` out"
        )
    if batch is not None:
        raise ConfigurationError(
            f"{signature.where}: a batch is handled in the worker's own process; leave `batch` or "
            "`executor` out"
        )
    check_named(signature)
    return "process"


def _error_types(given: object) -> tuple[type[BaseException], ...]:
    types: list[type[BaseException]] = []
    for kind in given if isinstance(given, list | tuple | set | frozenset) else (given,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(
                "not_retryable must be a tuple of error classes; "
                f"it holds {getattr(kind, '__name__', None) or type(kind).__name__}"
            )
        types.append(kind)
    return tuple(types)
