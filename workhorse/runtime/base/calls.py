"""A worker's calls to its store: whether the store answers, and what hangs.

Source: docs/design.md, sections 3 and 4; docs/cases.md, case 11.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from workhorse.errors import StoreUnavailableError
from workhorse.runtime.base.pace import Pace
from workhorse.telemetry import Counters, Metric, get_logger

if TYPE_CHECKING:
    from workhorse.store.base.database import Store, Tx

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger("worker")

_LOCK_NOT_GOT: Final = "55P03"
# With one of these the database did answer: a conflict, a deadlock, a lock, not an outage.
_ANSWERED: Final = frozenset({"40001", "40P01", _LOCK_NOT_GOT})


def lock_not_got(error: BaseException) -> bool:
    """Say whether an operation failed since somebody holds a row's lock."""
    return _sqlstate(error) == _LOCK_NOT_GOT


def refuses_value(error: BaseException) -> bool:
    """Say whether an operation failed for a value that the database cannot store."""
    state = _sqlstate(error)
    if state is not None:
        return state[:2] in ("22", "54")  # data exception, program limit exceeded
    return type(error).__name__ in ("DataError", "OverflowError")


def _sqlstate(error: BaseException | None) -> str | None:
    """Return what the database said, wherever it stands in the chain of wrapped errors."""
    while error is not None:
        for each in (error, getattr(error, "orig", None)):
            state = getattr(each, "sqlstate", None)
            if isinstance(state, str):
                return state
        error = error.__cause__
    return None


class StoreCalls:
    """Calls a store, notes whether it answers, and breaks connections that hang.

    Args:
        store: The store that is called.
        hang_ms: A call that takes longer has its connection broken. On SQLite, in this process,
            nothing can hang.
    """

    def __init__(self, store: Store, *, pace: Pace, counters: Counters, hang_ms: float) -> None:
        self.store = store
        self._pace = pace
        self._counters = counters
        self.hang_ms = hang_ms
        """A call that takes longer has its connection broken."""
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}
        self._calls = 0
        self.away = False
        """Whether the last call found no answer."""
        self.outages = 0
        """How often the store has come back."""

    def run(self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `Store.run`."""
        return self._call(self.store.run, op, args, kwargs)

    def run_once(
        self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `Store.run_once`."""
        return self._call(self.store.run_once, op, args, kwargs)

    def try_once(
        self, op: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `Store.try_once`."""
        return self._call(self.store.try_once, op, args, kwargs)

    def break_hung(self) -> bool:
        """Break the connections of calls that take too long; answer whether there were any."""
        if self.store.kind != "postgresql":
            return False
        now = self._pace.now_ms()
        with self._lock:
            hung = [call for call, since in self._since.items() if now - since > self.hang_ms]
            for call in hung:
                self._since[call] = now  # it gets as long again
        if not hung:
            return False
        _log.warning("the store has not answered for %.0f s: reconnecting", self.hang_ms / 1000)
        self.store.abort()
        return True

    def _call(self, how: Any, op: Callable[..., T], args: Any, kwargs: Any) -> T:
        with self._lock:
            self._calls += 1
            call = self._calls
            self._since[call] = self._pace.now_ms()
        try:
            answer: T = how(op, *args, **kwargs)
        except StoreUnavailableError as error:
            if _sqlstate(error) not in _ANSWERED:
                self._counters.add(Metric.STORE_ERRORS)
                if not self.away:
                    self.away = True
                    _log.warning("the store is away: %s", error)
            raise
        except Exception:
            self._note_answer()
            raise
        finally:
            with self._lock:
                del self._since[call]
        self._note_answer()
        return answer

    def _note_answer(self) -> None:
        if self.away:
            self.away = False
            self.outages += 1
            _log.info("the store answers again")
