"""`Task`: a handler with its name, its defaults and its codecs; what producers call.

Source: docs/design.md, sections 7 and 8.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, Unpack, cast

from workhorse.domain.retry import RetryPolicy
from workhorse.domain.values import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES
from workhorse.errors import (
    ConfigurationError,
    InvalidInstantError,
    NonRetryableError,
    UnstorableValueError,
)
from workhorse.handlers.codecs import Codec, codec_for
from workhorse.handlers.context import ActivationCore, AsyncContext, Context, current
from workhorse.handlers.producing import (
    EnqueueOptions,
    Producer,
    Request,
    RunHandle,
    RunOptions,
    checked_run,
    plain_options,
    plain_run,
)
from workhorse.handlers.signatures import LEFT_OUT, Signature

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

P = TypeVar("P")
R = TypeVar("R")

_LEFT_OUT: Final[Any] = LEFT_OUT
_LATER: Final = EnqueueOptions.__annotations__.keys() - RunOptions.__annotations__.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a task says about its runs where their producer says nothing; checked already."""

    queue: str
    retry: RetryPolicy
    timeout: timedelta | None
    deadline: timedelta | None
    priority: int
    not_retryable: tuple[type[BaseException], ...]
    batch: int | None = None
    min_time_left: timedelta | None = None
    executor: Literal["process"] | None = None


class Task(Generic[P, R]):
    """A named unit of work: the handler that does it, and how its runs are queued and retried.

    P is the handler's payload (None where it takes none), R what it returns. Tasks are made by
    `app.task(...)` and are safe in threads. Calling one calls the handler, as any function, which
    is what unit tests want; `enqueue` makes a run.
    """

    def __init__(
        self, name: str, aliases: tuple[str, ...], signature: Signature, options: TaskOptions
    ) -> None:
        self.name: Final = name
        self.aliases: Final = aliases
        self.handler: Final = signature.handler
        self.queue: Final = options.queue
        self.retry: Final = options.retry
        self.timeout: Final = options.timeout
        self.deadline: Final = options.deadline
        self.priority: Final = options.priority
        self.not_retryable: Final = options.not_retryable
        self.batch: Final = options.batch
        self.min_time_left: Final = options.min_time_left
        self.executor: Final = options.executor
        self.is_async: Final = signature.is_async
        self.takes_context: Final = signature.takes_context
        self.takes_payload: Final = signature.takes_payload
        self.where: Final = signature.where
        self._signature: Final = signature
        self._producer: Producer | None = None

    def __repr__(self) -> str:
        return f"<Task {self.name!r}: {self.where}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler itself: nothing is stored, validated or retried."""
        return self.handler(*args, **kwargs)

    # -- producing -------------------------------------------------------------------------------

    def enqueue(
        self,
        payload: P = _LEFT_OUT,
        *,
        connection: Session | Connection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> RunHandle[R]:
        """Store a run of this task and wake a worker for it.

        Args:
            payload: What the handler is handed; validated by its annotation. Left out, it is the
                parameter's default, else null. At most 1 MiB of JSON.
            connection: An open transaction of the caller's, which the run joins: it exists when
                that commits, and is woken then.
            options: See `EnqueueOptions`.

        Raises:
            UnstorableValueError: The payload does not fit, or would not come back unchanged.
            ValueTooLargeError: The payload is too large.
            InvalidNameError: A queue, key, session, tag or priority is not of the allowed form.
            InvalidInstantError: A time or duration is naive, negative or out of range.
            ConfigurationError: Options do not go together.
            IdempotencyConflictError: The key belongs to a run with another payload.
            RunNotFoundError: A run of `after` is not in this store; nothing was enqueued.
            StoreUnavailableError: The database does not answer.
        """
        return self._bound().enqueue(self.prepare(payload, **options), connection)

    async def enqueue_async(
        self,
        payload: P = _LEFT_OUT,
        *,
        connection: AsyncSession | AsyncConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> RunHandle[R]:
        """As `enqueue`, without blocking the event loop."""
        return await self._bound().enqueue_async(self.prepare(payload, **options), connection)

    def prepare(self, payload: P = _LEFT_OUT, **options: Unpack[EnqueueOptions]) -> Request[R]:
        """Check and encode a run for `app.enqueue_many`; nothing is stored yet.

        Raises: As `enqueue`, but for the store's errors.
        """
        text = self.encode_payload(payload)
        if not options:
            return Request(self, plain_run(self, text))
        now = self._producer.now() if self._producer is not None else None
        return Request(self, checked_run(self, text, now, **options))

    def run_now(self, payload: P = _LEFT_OUT, **options: Unpack[RunOptions]) -> RunHandle[R]:
        """Store a run and execute it here, by the same rules as in a worker.

        The run has its lease, its attempts and its outcome in the store. When an attempt fails and
        others are left, a worker goes on with it later; so does one with a run that cannot be
        claimed here (its queue is paused, its session has another's turn). `result()` waits for it.

        Raises: As `enqueue`, and:
            ConfigurationError: The handler cannot be called; nothing was enqueued.
            RunFailedError: The run has failed here.
            RunCancelledError: It was cancelled here.
        """
        return self._bound().run_now(self._prepare_now(payload, options))

    async def run_now_async(
        self, payload: P = _LEFT_OUT, **options: Unpack[RunOptions]
    ) -> RunHandle[R]:
        """As `run_now`, without blocking the event loop."""
        return await self._bound().run_now_async(self._prepare_now(payload, options))

    def _prepare_now(self, payload: P, options: RunOptions) -> Request[R]:
        if not options.keys().isdisjoint(_LATER):  # a type checker refuses it, not Python
            raise InvalidInstantError(
                f"task '{self.name}': run_now takes no delay and no run_at, and comes after nothing"
            )
        self.check()  # while nothing is stored that nobody here could execute
        return self.prepare(payload, **options)

    def bind(self, producer: Producer) -> None:
        """Say who carries out what producers ask for; the app calls this."""
        self._producer = producer

    def _bound(self) -> Producer:
        if self._producer is None:
            raise ConfigurationError(
                f"task '{self.name}' belongs to no app, so nobody can store its runs; "
                "register it with app.task(...)"
            )
        return self._producer

    # -- values ----------------------------------------------------------------------------------

    def encode_payload(self, payload: object = LEFT_OUT) -> str:
        """Return a payload as the JSON text that is stored.

        Raises:
            UnstorableValueError: It does not fit the annotation, or would not come back unchanged.
            ValueTooLargeError: It is larger than 1 MiB.
            ConfigurationError: The handler's annotation cannot be used.
        """
        if payload is LEFT_OUT:
            payload = self._signature.default
        return self._payload_codec.encode(self._payload_name, payload, cap=MAX_PAYLOAD_BYTES)

    def parse_payload(self, text: str) -> P:
        """Return the payload that JSON text from outside (a command line, a file) stands for.

        Raises:
            UnstorableValueError: It is no JSON, or does not fit the handler's annotation.
            ConfigurationError: The handler's annotation cannot be used.
        """
        return cast("P", self._payload_codec.decode(self._payload_name, text))

    def decode(self, payload_text: str) -> P:
        """Return a stored payload as the handler takes it; a fresh object at each call.

        Raises:
            NonRetryableError: It no longer fits the handler's annotation; the run is to end.
            ConfigurationError: The handler's annotation cannot be used.
        """
        try:
            payload: P = self._payload_codec.decode(self._payload_name, payload_text)
        except UnstorableValueError as misfit:
            raise NonRetryableError(
                f"{misfit}. The run was enqueued by other code than runs here; the handler was not "
                "called. Rerun it once a worker accepts it"
            ) from None
        return payload

    def encode_result(self, value: object) -> str:
        """Return what a handler returned as the JSON text that is stored.

        Raises:
            UnstorableValueError: It does not fit the annotation, or would not come back unchanged.
            ValueTooLargeError: It is larger than 1 MiB.
            ConfigurationError: The handler's annotation cannot be used.
        """
        return self._result_codec.encode(self._result_name, value, cap=MAX_RESULT_BYTES)

    def decode_result(self, result_text: str) -> R:
        """Return a stored result as the handler's annotation says; a fresh object at each call.

        Raises:
            UnstorableValueError: It does not fit the annotation of this version of the handler.
            ConfigurationError: The handler's annotation cannot be used.
        """
        return cast("R", self._result_codec.decode(self._result_name, result_text))

    def check(self) -> None:
        """Resolve the handler's annotations and build its codecs, which otherwise waits for use.

        Raises:
            ConfigurationError: An annotation names nothing, or is no type that JSON can carry; or
                another process is to call the handler, and would not find it.
        """
        _ = self._payload_codec, self._result_codec
        if self.executor == "process":
            from workhorse.handlers.places import place_of  # it knows tasks

            place_of(self)

    @cached_property
    def plain_options(self) -> tuple[Any, ...]:
        """What `plain_run` says of each run, made once."""
        return plain_options(self)

    @cached_property
    def _payload_codec(self) -> Codec:
        return codec_for(self._signature.payload_type(), f"the payload of {self.where}")

    @cached_property
    def _result_codec(self) -> Codec:
        return codec_for(self._signature.result_type(), f"the result of {self.where}")

    @cached_property
    def _payload_name(self) -> str:
        return f"payload of task '{self.name}'"

    @cached_property
    def _result_name(self) -> str:
        return f"result of task '{self.name}'"

    # -- activation ------------------------------------------------------------------------------

    def invoke(self, core: ActivationCore, payload: P) -> object:
        """Call a plain handler, in this thread, and return what it returned.

        The caller runs this in a copy of the context variables that is the activation's own.

        Raises:
            NonRetryableError: The handler returned an awaitable, which nobody would wait for.
        """
        context = Context(core)
        core.thread = threading.get_ident()
        before = current.set(context)
        try:
            returned = self._call(context, payload)
        finally:
            current.reset(before)
        if inspect.isawaitable(returned):
            _close(returned)
            raise NonRetryableError(
                f"task '{self.name}': {self.where} is a plain function and returned a "
                f"{type(returned).__name__}, so its work was not done. Define it with `async def`, "
                "or annotate what it returns as Awaitable[...]"
            )
        return returned

    def begin_async(self, core: ActivationCore, payload: P) -> object:
        """Call an async handler; what it returned is still to be awaited, if it can be.

        The caller runs this, and awaits, in a copy of the context variables that is the
        activation's own.
        """
        context = AsyncContext(core)
        current.set(context)
        return self._call(context, payload)

    async def invoke_async(self, core: ActivationCore, payload: P) -> object:
        """Call an async handler, as a part of the running task, and return what it returned."""
        before = current.set(AsyncContext(core))
        try:
            returned = self.begin_async(core, payload)
            if inspect.isawaitable(returned):
                return await cast("Awaitable[object]", returned)
            return returned
        finally:
            with contextlib.suppress(ValueError):  # closed from elsewhere, when its loop is gone
                current.reset(before)

    def _call(self, context: Context | AsyncContext, payload: P) -> object:
        handler: Callable[..., object] = self.handler
        if self.takes_context:
            return handler(context, payload) if self.takes_payload else handler(context)
        return handler(payload) if self.takes_payload else handler()


def _close(awaitable: object) -> None:
    """Spare a coroutine that never runs its warning."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
