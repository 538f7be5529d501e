"""Places in lists and timelines: real ones, bent. Each is refused, or leads to a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from tests.fuzz.evil import TEXTS
from tests.fuzz.kind import Check, Kind
from tests.fuzz.rigs import Installation, installation
from tests.fuzz.source import Source
from workhorse import Context


class _Pages:
    def __init__(self, installed: Installation) -> None:
        self._installed = installed
        app, admin = installed.app, installed.app.admin

        @app.task("waits")
        def waits(ctx: Context) -> None:
            ctx.checkpoint("first", lambda: 1)
            ctx.checkpoint("second", lambda: 2)
            ctx.wait_for_signal("paid", timeout=timedelta(days=300))

        self.runs = [waits.enqueue().id for _ in range(4)]
        worker = app.worker()
        worker.drain()
        worker.stop(0)
        self.lists: dict[str, Callable[[Any], Any]] = {
            "runs": lambda place: admin.list_runs(before=place, limit=2),
            "waits": lambda place: admin.list_waits(after=place, limit=2),
            "timeline": lambda place: admin.timeline(self.runs[0], after=place, limit=2),
            "checkpoints": lambda place: admin.list_checkpoints(self.runs[0], after=place, limit=1),
        }
        self.places = {"runs": self.runs[-1], "checkpoints": "first"}
        for which in ("waits", "timeline"):
            self.places[which] = self.lists[which](None)[0].cursor

    def check(self, given: tuple[str, Any]) -> bool:
        which, bend = given
        place = bend(self.places[which]) if callable(bend) else bend
        error = self._installed.refusal_of(lambda: self.lists[which](place), names=True)
        return error is not None


@contextmanager
def _paging() -> Iterator[Check]:
    with installation() as installed:
        yield _Pages(installed).check


def _bent(source: Source) -> tuple[str, Any]:
    which = source.pick(["runs", "waits", "timeline", "checkpoints"])
    how, at, char = source.below(7), source.below(10_000), chr(source.below(0x110000))
    digit = source.pick("0123456789abcdef:-. \0٣")

    def bend(place: str) -> str:
        here = at % (len(place) + 1)
        match how:
            case 0:
                return place[:here]
            case 1:
                return place[:here] + char + place[here:]
            case 2:
                return place[:here] + digit + place[here + 1 :]
            case 3:
                return place + place
            case 4:
                return place.upper()
            case 5:
                return place.replace(":", digit)
            case _:
                return place[:here] + "9" * 400 + place[here:]

    return which, bend


KINDS: Final = (
    Kind(
        name="cursors",
        share=2_000,
        draw=_bent,
        corpus=[(which, each) for which in ("runs", "waits", "timeline") for each in TEXTS],
        rig=_paging,
    ),
)
