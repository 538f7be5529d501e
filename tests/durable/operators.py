"""What operators do, in the state machine: to one run, to many at once, and to the queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.durable.activating import QUEUE
from tests.durable.looking import Looker
from tests.durable.model import Model, Run
from tests.durable.programs import Program
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.errors import RunNotFinishedError
from workhorse.store.base.database import Store
from workhorse.store.operators.choosing import START, Bound, RunFilter, begin_request, choose
from workhorse.store.operators.many import PageDone, cancel_page, rerun_page
from workhorse.store.operators.operating import ALL, NONE, cancel, pause_queue, rerun, resume_queue

MOST: Final = 3
"""How many runs may be unfinished before no more are started."""
_picks: Final = st.integers(0, 11)


def reach(queue: str) -> int:
    """A broker that delays messages up to 15 minutes."""
    return 900_000


class Operators:
    """The rules of operators; a part of the machine, which has the rest."""

    store: ClassVar[Store]
    looker: ClassVar[Looker]
    model: Model
    programs: dict[RunId, Program]
    _serial: itertools.count[int]
    _did: set[tuple[str, RunId]]
    """What has been done to runs, by request."""

    def _run(self, pick: int) -> RunId:
        raise NotImplementedError

    def _unfinished(self) -> int:
        raise NotImplementedError

    def _claimable(self) -> dict[RunId, str]:
        raise NotImplementedError

    def _check_hints(self, before: dict[RunId, str], hints: Sequence[Hint]) -> None:
        raise NotImplementedError

    # -- one run ---------------------------------------------------------------------------------

    def _cancel(self, pick: int) -> None:
        run_id, before = self._run(pick), self._claimable()
        result, hints = self.store.run(cancel, run_id, **self._asks())
        assert result == self.model.cancel(run_id)
        self._check_hints(before, hints)

    @rule(pick=_picks, place=st.none() | _picks)
    def rerun(self, pick: int, place: int | None) -> None:
        """A run is run again with all that it has passed, or up to a boundary; asked for twice."""
        old = self.model.runs[self._run(pick)]
        names = sorted(old.boundaries, key=lambda name: old.boundaries[name].seq)
        upto = ALL if place is None else [NONE, *names][place % (len(names) + 1)]
        how: dict[str, Any] = {**self._asks(), "reach": reach, "boundaries": upto}
        if not old.finished:
            with pytest.raises(RunNotFinishedError):
                self.store.run(rerun, old.id, **how)
            return
        if self._unfinished() >= MOST:
            return
        done, again = (self.store.run(rerun, old.id, **how) for _ in range(2))
        assert (done.created, again.created, again.run_id) == (True, False, done.run_id)
        self._taken_over(old.id, done.run_id, upto)

    def _taken_over(self, old: RunId, new: RunId, boundaries: str) -> None:
        self.model.rerun(old, new, boundaries=boundaries)
        self.programs[new] = self.programs[old]
        # Among those that were closed in one go the store says which is the first.
        run, came = self.model.runs[new], self.model.runs[old].deliveries
        places = self.looker.places(new)
        assert places.keys() == run.deliveries.keys()
        in_order = sorted(places, key=lambda key: places[key])
        assert [places[key] for key in in_order] == list(range(1, len(places) + 1))
        numbers = [came[key].inbox for key in in_order]
        assert numbers == sorted(numbers)
        for key, place in places.items():
            run.deliveries[key] = replace(run.deliveries[key], inbox=place)

    # -- many ------------------------------------------------------------------------------------

    @rule(
        act=st.sampled_from(["cancel", "rerun"]),
        state=st.none() | st.sampled_from(list(RunState)),
        limit=st.none() | st.integers(1, 2),
        cut_off=st.booleans(),
    )
    def many(self, act: str, state: RunState | None, limit: int | None, cut_off: bool) -> None:
        """All runs that have something in common; the call is cut off, and made again."""
        finished = act == "rerun"
        meant = RunFilter(finished=finished, state=state, queue=QUEUE)
        how: dict[str, Any] = {"limit": limit, **self._asks()}
        chosen = self._meant(finished, state)
        until = chosen[limit - 1] if limit and len(chosen) >= limit else max(self.model.runs)
        bound: Bound = self.store.run(begin_request, act, meant, **how)
        assert (bound.until, bound.at) == (until, self.model.now)
        # Some were made before the clock was set back.
        reached = [each for each in chosen if self._is_within(self.model.runs[each], bound)]
        assert self.store.run(choose, meant, bound, after=START) == reached
        request = str(how["request_id"])
        if cut_off:
            self._page(act, reached[:1], request)
            assert self.store.run(begin_request, act, meant, **how) == bound
        self._page(act, reached, request)

    def _page(self, act: str, ids: list[RunId], request_id: str) -> None:
        """Do a page twice: whoever got no answer does so again."""
        how = {"by": "somebody", "why": "", "request_id": request_id}
        if act == "cancel":
            for _ in range(2):
                before = self._claimable()
                page: PageDone = self.store.run(cancel_page, ids, **how)
                new = [each for each in sorted(ids) if (request_id, each) not in self._did]
                answers = [self.model.cancel(each) for each in new]
                done = [each for each in answers if each != "already_finished"]
                assert (page.done, page.skipped) == (len(done), len(answers) - len(done))
                assert page.done_before == len(ids) - len(new)
                self._did |= {
                    (request_id, each)
                    for each, answer in zip(new, answers, strict=True)
                    if answer != "already_finished"
                }
                self._check_hints(before, page.hints)
            return
        for _ in range(2):
            if self._unfinished() + len(ids) > 2 * MOST:
                return
            new = [each for each in ids if (request_id, each) not in self._did]
            page = self.store.run(rerun_page, ids, **how, reach=reach, boundaries=ALL)
            assert (page.done, page.done_before) == (len(new), len(ids) - len(new))
            for old, hint in zip(new, page.hints, strict=True):
                self._taken_over(old, hint.run_id, ALL)
                self._did.add((request_id, old))

    def _meant(self, finished: bool, state: RunState | None) -> list[RunId]:
        return sorted(
            run.id
            for run in self.model.runs.values()
            if run.finished == finished and state in (None, run.state)
        )

    @staticmethod
    def _is_within(run: Run, bound: Bound) -> bool:
        came = [run.created_at] if run.finished_at is None else [run.created_at, run.finished_at]
        return run.id <= bound.until and max(came) <= bound.at

    # -- the queue -------------------------------------------------------------------------------

    def _pause(self, paused: bool) -> None:
        act = pause_queue if paused else resume_queue
        changed = self.store.run(act, QUEUE, by="somebody", why="")
        assert changed == (paused != self.model.paused)
        self.model.paused = paused

    def _asks(self) -> dict[str, str]:
        return {"by": "somebody", "why": "", "request_id": f"q{next(self._serial)}"}


def ids_of(hints: Iterable[Hint]) -> set[RunId]:
    """Those that are woken at once."""
    return {hint.run_id for hint in hints if hint.delay_ms == 0}
