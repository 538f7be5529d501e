"""What operators do to many runs, a page of them in a transaction; each run has its own act.

Source: docs/design.md, section 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.errors import BoundaryNotFoundError, RunNotFinishedError, RunNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.operators.choosing import done_before
from workhorse.store.operators.operating import CancelResult, cancel, rerun


@dataclass(slots=True)
class PageDone:
    """What was done to a page of runs: how many by this call, and the wakeups that must follow.

    `done_before` were done by an earlier call of the same request; `skipped` could not be: they
    have ended, or are gone, or have no boundary of the name.
    """

    done: int = 0
    done_before: int = 0
    skipped: int = 0
    hints: list[Hint] = field(default_factory=list)


def cancel_page(tx: Tx, ids: Sequence[RunId], *, by: str, why: str, request_id: str) -> PageDone:
    """Cancel runs, or ask their workers to end them. Their rows are locked in the order of ids."""
    page = PageDone()
    before = done_before(tx, "cancel", ids, request_id)
    for run_id in sorted(ids):
        if run_id in before:
            page.done_before += 1
            continue
        try:
            result, hints = cancel(tx, run_id, by=by, why=why, request_id=request_id)
        except RunNotFoundError:
            page.skipped += 1
            continue
        page.hints += hints
        if result is CancelResult.ALREADY_FINISHED:
            page.skipped += 1
        else:
            page.done += 1
    return page


def rerun_page(
    tx: Tx,
    ids: Sequence[RunId],
    *,
    by: str,
    why: str,
    request_id: str,
    reach: Reach,
    boundaries: str,
) -> PageDone:
    """Start finished runs again; see `operating.rerun`."""
    page = PageDone()
    for run_id in ids:
        try:
            answer = rerun(
                tx,
                run_id,
                by=by,
                why=why,
                request_id=request_id,
                reach=reach,
                boundaries=boundaries,
            )
        except (RunNotFoundError, RunNotFinishedError, BoundaryNotFoundError):
            # Raised before anything is written for that run, so the page goes on.
            page.skipped += 1
            continue
        if answer.created:
            page.done += 1
            page.hints.append(Hint(answer.run_id, answer.queue))
        else:
            page.done_before += 1
    return page
