"""Where looks at a queue start: behind a page, or at a head without what is gone from it.

Source: docs/adr/0005-claims-by-id-and-by-page.md; docs/adr/0017-tables-that-grow.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from workhorse.domain.runs import ClaimedRun

SLOW_COMMIT_US: Final = 250_000
"""What became ready this long ago is committed by now, or left to a look at the very head."""
_LAST_RANK: Final = 100
_MOST_PLACES: Final = 8


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next page of a sweep starts; to be handed back, not to be looked into."""

    rank: int
    ready_us: int
    id: str


_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_HEAD: Final = Cursor(-1, 0, _FIRST)


@dataclass(frozen=True, slots=True)
class Head:
    """A queue's head without what earlier looks have passed; not to be looked into.

    Runs that were taken leave dead entries in the index, and those at the very head are read by
    each look at it for as long as somebody's snapshot may still see them. What is not read again
    lies before a place in a rank; other ranks are read whole. No place is behind a run that was
    seen and left, for want of a slot, of its turn or of its row's lock.
    """

    places: tuple[Cursor, ...]


def probes_of(tasks: Sequence[str], start: Cursor | Head | None) -> str:
    """Return what a page reads: for each task the ranks from a place on to the next place's."""
    places = start.places if isinstance(start, Head) else (start or _HEAD,)
    if places[0].rank > 0 and isinstance(start, Head):
        places = (_HEAD, *places)
    ends = [*(place.rank - 1 for place in places[1:]), _LAST_RANK]
    return json.dumps(
        [
            {
                "task": task,
                "from_rank": place.rank,
                "from_us": place.ready_us,
                "from_id": place.id,
                "to_rank": end,
            }
            for task in tasks
            for place, end in zip(places, ends, strict=True)
        ]
    )


def place_of(text: str) -> tuple[Cursor, int]:
    """Return the place of a row in the order of a scan, and the number beside it."""
    rank, ready_us, last, count = text.split(" ")
    return Cursor(int(rank), int(ready_us), last), int(count)


def before(place: Cursor) -> Cursor:
    """Return the place that only this one and later ones are behind."""
    return replace(place, id=str(UUID(int=UUID(place.id).int - 1)))


def head_of(
    start: Head | None, claimed: Sequence[ClaimedRun], stop: Cursor | None, seen_us: int
) -> Head | None:
    """Return what a look has left of a queue's head.

    Args:
        start: What it began at.
        claimed: The runs it took.
        stop: What it has taken all up to; None is the end of the queue.
        seen_us: What became ready before is seen by now.
    """
    places = {} if start is None else {place.rank: place for place in start.places}
    taken = {100 - run.priority for run in claimed}
    for rank in taken | set(places):
        if stop is None or rank < stop.rank:
            places[rank] = Cursor(rank, seen_us, _FIRST)
        elif rank == stop.rank:
            places[rank] = stop if stop.ready_us < seen_us else Cursor(rank, seen_us, _FIRST)
    # A place costs a probe for each task: where runs are taken now is where the dead are.
    kept = sorted(places, key=lambda rank: rank not in taken)[:_MOST_PLACES]
    return Head(tuple(places[rank] for rank in sorted(kept))) if kept else None
