"""Who waits for the end of a run or a token is freed by it, in passes of bounded size.

The end commits first, together with a note of it (`noting`). A pass then works through the links
that lead from it: each link goes in the transaction that gives its run what it waited for, so
whoever dies half way leaves what is undone to the next pass, and nobody gets anything twice. The
end of a run also cancels the children that it leaves behind. When nothing is left the note goes.

Passes take live rows with SKIP LOCKED, so they need no order and never wait; a row that somebody
holds is looked at again by the next.

Source: docs/design.md, section 2; docs/adr/0013-what-ends-frees.md
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Failure, OnFailure, Reason, RunState
from workhorse.store.base.database import Tx
from workhorse.store.base.pages import PAGE, Swept
from workhorse.store.base.schema import LinkKind
from workhorse.store.durable import links as rows
from workhorse.store.durable.putting import NewDelivery, in_turn, put
from workhorse.store.durable.tokens import TokenEnd, token_ends
from workhorse.store.live.ending import Ending, end_runs
from workhorse.store.live.noting import note_freed

SMALL_PASS: Final = 20
"""Links that whoever completes a token works through himself."""


def free(tx: Tx, source: str, *, limit: int = PAGE) -> Swept:
    """Do one pass for what has come to its end: a run's id, or a token's reference.

    Args:
        limit: Links, and children of a run, to work through at most: 20 or 100.
    """
    return free_all(tx, [source], limit=limit)


def free_noted(tx: Tx) -> Swept:
    """Do one pass for whatever is noted longest: what maintenance does."""
    return free_all(tx, freed_sources(tx, PAGE))


def freed_sources(tx: Tx, limit: int = PAGE) -> list[str]:
    """Return what has come to its end and may have links left, the oldest first; it is locked."""
    return [row.source for row in tx.fetch(rows.oldest_noted, limit)]


def free_all(tx: Tx, sources: Sequence[str], *, limit: int = PAGE) -> Swept:
    """Do one pass for several ends; those that another pass has in hand are left to it."""
    noted = [row.source for row in tx.fetch(rows.lock_noted, sources=json.dumps(list(sources)))]
    if not noted:
        return Swept()
    done = Swept()
    page = tx.fetch(rows.page_of_links, limit, sources=json.dumps(noted))
    if page:
        _follow(tx, page, done)
    runs = [source for source in noted if _is_run(source)]
    children = tx.fetch(rows.children_left, limit, parents=json.dumps(runs)) if runs else ()
    _cancel(tx, children, done)
    forgotten = _forget(tx, noted, runs)
    # A page that got nowhere, since others hold its rows, is not followed by another at once.
    full = len(noted) >= PAGE or len(page) >= limit or len(children) >= limit
    done.full = done.full or (full and (done.count > 0 or forgotten > 0))
    return done


def arm(tx: Tx, *, sources: Sequence[str] | None = None) -> Swept:
    """Let runs be watched that others are to come after, or free those where they have ended.

    It follows each enqueue of runs that come after others; maintenance does what was left.

    Args:
        sources: Only these runs.
    """
    named = {} if sources is None else {"sources": json.dumps(list(sources))}
    unarmed = [row.source for row in tx.fetch(rows.unarmed, sources is not None, **named)]
    if not unarmed:
        return Swept()
    ids = json.dumps(unarmed)
    alive = [str(row.id) for row in tx.fetch(rows.lock_watchable, ids=ids)]
    if alive:
        tx.write(rows.watch, ids=json.dumps(alive))
    # One that somebody holds is found here, and looked at again by the next.
    unfinished = {str(row.id) for row in tx.fetch(rows.unfinished, ids=ids)}
    ended = [source for source in unarmed if source not in unfinished]
    # The notes come before the links, here as in a pass: each waits for the other at most once.
    note_freed(tx, ended)
    settled = sorted({*alive, *ended})
    if settled:
        tx.write(rows.note_armed, sources=json.dumps(settled))
    swept = free_all(tx, ended) if ended else Swept()
    return Swept(len(settled), bool(settled) and len(unarmed) >= PAGE, swept.hints)


def cancel_children(tx: Tx, ids: Sequence[RunId], *, parents: Sequence[RunId]) -> Swept:
    """Cancel children of these parents; others of these ids are left alone.

    Those that are running are asked. A child that somebody holds just now is cancelled by the next
    pass: its row is not waited for, since its parent's is locked here.
    """
    tx.write(rows.link_cancels, ids=json.dumps(list(ids)), parents=json.dumps(list(parents)))
    sources = [f"{LinkKind.CANCEL}:{parent}" for parent in parents]
    note_freed(tx, sources)
    return free_all(tx, sources)


# -- what a pass does ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Work:
    """What the links of a page come to."""

    deliveries: list[NewDelivery] = field(default_factory=list)
    unblocked: dict[str, int] = field(default_factory=dict)
    endings: dict[str, Finish] = field(default_factory=dict)
    cancelled: list[Any] = field(default_factory=list)


def _follow(tx: Tx, page: Sequence[Any], done: Swept) -> None:
    """Give the runs of a page of links what they waited for; the links go."""
    ids = json.dumps(sorted({str(link.run_id) for link in page}))
    locked = {str(row.id): row for row in tx.fetch(rows.lock_waiting, ids=ids)}
    # Of the others, one that has no row any more has ended; somebody holds the rest.
    alive = set(locked)
    if len(alive) < len({link.run_id for link in page}):
        alive |= {str(row.id) for row in tx.fetch(rows.unfinished, ids=ids)}
    ends = _Ends(tx, {link.source for link in page})
    work = _Work()
    gone = []
    for link in page:
        run_id = str(link.run_id)
        if run_id in locked:
            _judge(link, locked[run_id], ends, work)
        elif run_id in alive:
            continue
        gone.append({"source": link.source, "run_id": run_id, "name": link.name})
    done.count += len(gone)
    done.hints += put(tx, work.deliveries).hints
    unblocked = [
        {"id": run_id, "count": count}
        for run_id, count in work.unblocked.items()
        if run_id not in work.endings
    ]
    if unblocked:
        blocked = tx.fetch(rows.unblock, batch=json.dumps(unblocked))
        done.hints += in_turn(tx, [row for row in blocked if row.state == RunState.READY])
    _end(tx, work.endings, done)
    _cancel(tx, work.cancelled, done)
    if gone:
        tx.write(rows.remove_links, batch=json.dumps(gone), sources=ends.sources)


def _judge(link: Any, row: Any, ends: _Ends, work: _Work) -> None:
    run_id = str(link.run_id)
    if link.kind == LinkKind.CANCEL:
        work.cancelled.append(row)
    elif link.kind == LinkKind.AFTER:
        # A run that waits for nothing any more was told before.
        if row.state == RunState.WAITING and row.blockers > 0:
            end = ends.runs.get(link.source)
            if (end and end.state == RunState.SUCCEEDED) or row.on_failure == OnFailure.RUN:
                work.unblocked[run_id] = work.unblocked.get(run_id, 0) + 1
            else:
                work.endings.setdefault(run_id, _dependent_end(link.source, end, row.on_failure))
    elif link.kind == LinkKind.CHILD:
        work.deliveries.append(_child_delivery(link, ends.runs.get(link.source)))
    else:
        work.deliveries.append(_token_delivery(link, ends.tokens.get(link.source)))


class _Ends:
    """How the sources of a page came to their end."""

    def __init__(self, tx: Tx, sources: Iterable[str]) -> None:
        self.sources = json.dumps(sorted(sources))
        runs = [source for source in sources if _is_run(source)]
        refs = [source for source in sources if not _is_run(source)]
        self.runs: dict[str, Any] = {}
        if runs:
            found = tx.fetch(rows.ends_of_runs, ids=json.dumps(runs))
            self.runs = {str(row.id): row for row in found}
        self.tokens: dict[str, TokenEnd] = token_ends(tx, refs) if refs else {}


def _is_run(source: str) -> bool:
    try:
        return str(uuid.UUID(source)) == source
    except ValueError:
        return False


def _token_delivery(link: Any, end: TokenEnd | None) -> NewDelivery:
    return NewDelivery(
        run_id=RunId(str(link.run_id)),
        kind=BoundaryKind.TOKEN,
        name=link.name,
        state=end.state if end is not None else DeliveryState.FAILED,  # it is not there any more
        value=end.value if end is not None else None,
    )


def _child_delivery(link: Any, end: Any) -> NewDelivery:
    run_id, name = RunId(str(link.run_id)), link.name
    if end is not None and end.state == RunState.SUCCEEDED:
        child = RunId(link.source)
        return NewDelivery(run_id=run_id, kind=BoundaryKind.CHILD, name=name, child=child)
    cancelled = end is not None and end.state == RunState.CANCELLED
    return NewDelivery(
        run_id=run_id,
        kind=BoundaryKind.CHILD,
        name=name,
        state=DeliveryState.CANCELLED if cancelled else DeliveryState.FAILED,
        value=json.dumps(
            {
                "run_id": link.source,
                "task": end.task if end is not None else None,
                "reason": end.reason if end is not None else None,
                "error_type": end.error_type if end is not None else None,
                "error_message": end.error_message if end is not None else None,
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ),
    )


def _dependent_end(source: str, end: Any, on_failure: str | None) -> Finish:
    if on_failure == OnFailure.CANCEL:
        return Finish(RunState.CANCELLED, Reason.CANCELLED)
    what = "is no longer in the store"
    if end is not None:
        what = "was cancelled" if end.state == RunState.CANCELLED else "has failed"
    failure = Failure(
        "DependencyFailed",
        f"run {source}, which this run was to come after, {what}; this one was not called. Run "
        "that one again and enqueue this one after it, or run this one again by itself",
    )
    return Finish(RunState.FAILED, Reason.NOT_RETRYABLE, failure=failure)


def _end(tx: Tx, finishes: dict[str, Finish], done: Swept) -> None:
    endings = [Ending(RunId(run_id), None, finish) for run_id, finish in finishes.items()]
    if endings:
        ended = end_runs(tx, endings, under_lease=False)
        done.hints += ended.hints
        done.full = done.full or bool(ended.freed)  # their own children, and who comes after them


def _cancel(tx: Tx, found: Sequence[Any], done: Swept) -> None:
    """Cancel runs whose rows are locked; those that are running are asked."""
    running = [str(row.id) for row in found if row.state == RunState.RUNNING]
    if running:
        tx.write(rows.ask_cancel, ids=json.dumps(running))
    finish = Finish(RunState.CANCELLED, Reason.CANCELLED)
    _end(tx, {str(row.id): finish for row in found if row.state != RunState.RUNNING}, done)
    done.count += len(found)


def _forget(tx: Tx, noted: Sequence[str], runs: Sequence[str]) -> int:
    """Remove the notes of those with nothing left to do; put the others behind the rest.

    Answers how many were removed.
    """
    busy: set[str] = set()
    if runs:
        left = tx.fetch(rows.parents_left, parents=json.dumps(list(runs)))
        busy = {str(row.parent_id) for row in left}
    idle = [source for source in noted if source not in busy]
    forgotten = tx.write(rows.forget, sources=json.dumps(idle))
    if forgotten < len(noted):
        tx.write(rows.defer, sources=json.dumps(list(noted)))
    return forgotten


__all__ = [
    "SMALL_PASS", "arm", "cancel_children", "free", "free_all", "free_noted", "freed_sources",
    "note_freed",
]  # fmt: skip
