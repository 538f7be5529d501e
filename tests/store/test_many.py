"""Pages of runs that an operator acts on: what is done, was done before, and cannot be done."""

from __future__ import annotations

from collections.abc import Sequence

from tests.store.acting import a_claimed, end, put, seen, state_of
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import RunState
from workhorse.store.base.database import Store
from workhorse.store.operators.many import cancel_page
from workhorse.store.operators.operating import cancel, note


def _cancelled(store: Store, ids: Sequence[RunId], request_id: str = "r") -> tuple[int, int, int]:
    page = store.run(cancel_page, ids, by="ann", why="no", request_id=request_id)
    return page.done, page.done_before, page.skipped


def test_what_has_ended_or_gone_meanwhile_is_skipped(store: Store) -> None:
    """Between the look for those that are meant and the act others go on."""
    ready, ended = put(store), a_claimed(store)
    end(store, ended)

    assert _cancelled(store, [new_run_id(), ended.id, ready]) == (1, 0, 2)

    assert (state_of(store, ended.id), state_of(store, ready)) == ("succeeded", "cancelled")


def test_only_the_same_act_of_the_same_request_was_done_before(store: Store) -> None:
    running = a_claimed(store).id
    store.run(cancel, running, by="ann", why="", request_id="another")
    store.run(note, "rerun", running, by="ann", why="", request_id="r")
    waits = put(store)
    store.run(note, "rerun", waits, by="ann", why="", request_id="r")

    assert _cancelled(store, [running, waits]) == (2, 0, 0)
    assert _cancelled(store, [running, waits]) == (0, 2, 0)

    assert state_of(store, waits) is RunState.CANCELLED
    assert seen(store, running).cancel_asked_at is not None
