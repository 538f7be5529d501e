"""Cancel and rerun many runs at once, by what they have in common.

A request is worked off in pages. What its first call meant is noted under its id, so a repeat of it
finishes the same set and touches nothing that has come since; each run is acted on once.

Source: docs/design.md, section 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from workhorse.client.checks import check_said, new_request_id
from workhorse.client.passing import pass_on
from workhorse.client.publishing import Publisher
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.instants import check_instant
from workhorse.domain.names import (
    check_boundary,
    check_queue,
    check_request,
    check_tags,
    check_task,
)
from workhorse.domain.runs import FINISHED, RunState
from workhorse.domain.showing import member, shown
from workhorse.errors import ConfigurationError
from workhorse.ports import Lane
from workhorse.store.base.database import Store
from workhorse.store.operators import many
from workhorse.store.operators.choosing import START, RunFilter, begin_request, choose
from workhorse.store.operators.many import PageDone
from workhorse.store.operators.operating import ALL

CANCELLED_AT_ONCE: Final = 100
RERUN_AT_ONCE: Final = 20
"""A page is a transaction, and each of its runs may have 64 MiB of boundaries to copy."""
COUNTED_AT_ONCE: Final = 1_000
NAMED: Final = 20
LARGEST_LIMIT: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class ManyDone:
    """What a request about many runs came to.

    `matched` runs were meant. Of these, `done` were acted on by this call and `done_before` by an
    earlier call of the same request; `skipped` had ended meanwhile, or could not be run again.
    `first` are the first 20 that were meant. They were worked through in `pages`. Repeat the
    request by its `request_id`.
    """

    request_id: str
    dry_run: bool
    matched: int = 0
    done: int = 0
    done_before: int = 0
    skipped: int = 0
    pages: int = 0
    first: list[RunId] = field(default_factory=list)

    def add(self, ids: list[RunId], page: PageDone) -> None:
        """Count a page of runs and what was done to them."""
        self.pages += 1
        self.matched += len(ids)
        self.done += page.done
        self.done_before += page.done_before
        self.skipped += page.skipped
        self.first += ids[: NAMED - len(self.first)]


Progress = Callable[[ManyDone], object]


class ManyCalls:
    """The calls of `app.admin` that act on many runs."""

    _store: Callable[[], Store]
    _lane: Callable[[], Lane]
    _publisher: Publisher
    _stride: int

    def cancel_many(
        self,
        *,
        by: str,
        why: str = "",
        state: RunState | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
        progress: Progress | None = None,
    ) -> ManyDone:
        """Cancel unfinished runs that have all of this in common, the oldest first.

        Args:
            by: Who asks.
            why: For the audit of each run.
            state: Only runs in this state: `scheduled`, `ready`, `running` or `waiting`.
            task: Only runs of the task enqueued under this name.
            queue: Only runs of this queue.
            tag: Only runs that have it.
            created_after: Only runs made then or later.
            created_before: Only runs made before.
            limit: The most runs, up to 1,000,000.
            dry_run: Count them, and change nothing.
            request_id: A name for this request, up to 200 characters: a repeat of it finishes what
                the first call meant. It is drawn where none is given.
            progress: Told after each page what was done so far.

        Raises:
            ConfigurationError: Nothing says which runs, or something that is said cannot be meant.
            InvalidNameError: A name is not of the allowed form.
            IdempotencyConflictError: The request id belongs to another request.
            StoreUnavailableError: The database does not answer; what was done stands.
        """
        meant = _filter(
            finished=False,
            state=state,
            task=task,
            queue=queue,
            tag=tag,
            created_after=created_after,
            created_before=created_before,
        )

        def cancel(ids: list[RunId], request: str) -> PageDone:
            store = self._store()
            page = store.run(many.cancel_page, ids, by=by, why=why, request_id=request)
            page.hints += pass_on(store, ids)
            return page

        asked = _Asked("cancel_many", meant, by, why, limit, dry_run, request_id)
        return self._work_off(asked, cancel, CANCELLED_AT_ONCE, progress, stride=1)

    def rerun_many(
        self,
        *,
        by: str,
        why: str = "",
        state: RunState | str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        error_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        boundaries: str = ALL,
        limit: int | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
        progress: Progress | None = None,
    ) -> ManyDone:
        """Start finished runs again that have all of this in common, the oldest first.

        Each becomes a new run linked to it; see `rerun`, and `cancel_many` for the other arguments.

        Args:
            state: Only runs that ended so: `succeeded`, `failed` or `cancelled`.
            error_type: Only runs that failed with an error of this type.
            boundaries: As for `rerun`; runs that have no boundary of the name are skipped.
        """
        meant = _filter(
            finished=True,
            state=state,
            task=task,
            queue=queue,
            tag=tag,
            error_type=error_type,
            created_after=created_after,
            created_before=created_before,
        )
        upto = check_boundaries(boundaries)
        reach = self._lane().reach_ms

        def rerun(ids: list[RunId], request: str) -> PageDone:
            return self._store().run(
                many.rerun_page,
                ids,
                by=by,
                why=why,
                request_id=request,
                reach=reach,
                boundaries=upto,
            )

        asked = _Asked("rerun_many", meant, by, why, limit, dry_run, request_id)
        return self._work_off(asked, rerun, RERUN_AT_ONCE, progress, stride=self._stride)

    def _work_off(
        self,
        asked: _Asked,
        act: Callable[[list[RunId], str], PageDone],
        at_once: int,
        progress: Progress | None,
        *,
        stride: int,
    ) -> ManyDone:
        check_said("by", asked.by, least=1)
        check_said("why", asked.why)
        limit = _limit(asked.limit)
        given = asked.request_id
        request_id = new_request_id() if given is None else check_request(given)
        done = ManyDone(request_id=request_id, dry_run=asked.dry_run)
        if asked.dry_run:
            act, at_once = _nothing, COUNTED_AT_ONCE
        for ids in self._pages(asked, request_id, limit, at_once):
            page = act(ids, request_id)
            self._publisher.publish(_strided(page.hints, stride))
            done.add(ids, page)
            if progress is not None:
                progress(done)
        return done

    def _pages(
        self, asked: _Asked, request_id: str, limit: int | None, at_once: int
    ) -> Iterator[list[RunId]]:
        store = self._store()
        begin = store.read if asked.dry_run else store.run
        bound = begin(
            begin_request,
            asked.act,
            asked.meant,
            limit=limit,
            by=asked.by,
            why=asked.why,
            request_id=request_id,
            dry=asked.dry_run,
        )
        left, after = limit, START
        while left is None or left > 0:
            most = at_once if left is None else min(at_once, left)
            ids = store.read(choose, asked.meant, bound, after=after, limit=most)
            if ids:
                yield ids
            if len(ids) < most:
                return
            after = ids[-1]
            left = None if left is None else left - len(ids)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request about many runs, as it was made."""

    act: str
    meant: RunFilter
    by: str
    why: str
    limit: int | None
    dry_run: bool
    request_id: str | None


def check_boundaries(boundaries: object) -> str:
    """Return what a rerun takes over: `all`, `none`, or all up to the boundary of that name."""
    return check_boundary(boundaries)


def _nothing(_ids: list[RunId], _request_id: str) -> PageDone:
    return PageDone()


def _strided(hints: list[Hint], stride: int) -> list[Hint]:
    """Return one wakeup for so many runs of a queue: who gets it scans for the others."""
    seen: dict[str, int] = {}
    kept = []
    for hint in hints:
        count = seen[hint.queue] = seen.get(hint.queue, 0) + 1
        if (count - 1) % stride == 0:
            kept.append(hint)
    return kept


def _filter(*, finished: bool, **said: Any) -> RunFilter:
    checks: dict[str, Callable[[Any], Any]] = {
        "state": lambda state: _state(state, finished=finished),
        "task": check_task,
        "queue": check_queue,
        "tag": lambda tag: check_tags([tag])[0],
        "error_type": lambda name: check_said("error_type", name, least=1),
        "created_after": lambda at: check_instant("created_after", at),
        "created_before": lambda at: check_instant("created_before", at),
    }
    given = {name: checks[name](value) for name, value in said.items() if value is not None}
    meant = RunFilter(finished=finished, **given)
    if meant.says_nothing:
        raise ConfigurationError(
            f"nothing says which runs are meant; give at least one of: {', '.join(said)}"
        )
    return meant


def _state(state: str, *, finished: bool) -> RunState:
    fitting = [each for each in RunState if (each in FINISHED) is finished]
    meant = member(RunState, state)
    if meant in fitting:
        return meant
    raise ConfigurationError(
        f"state {shown(state)} is none of: {', '.join(fitting)}; "
        + ("only finished runs are run again" if finished else "only unfinished ones are cancelled")
    )


def _limit(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or not 1 <= limit <= LARGEST_LIMIT):
        raise ConfigurationError(
            f"limit is {shown(limit)}; it must be 1 to {LARGEST_LIMIT:,}, or None"
        )
    return limit
