"""What the demo shows: a line for each thing that happens, and a table of the fleet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from workhorse.cli.demo.ledger import EFFECT, END, ERROR, NAME, PAUSE, START, Ledger, Line, in_hand
from workhorse.cli.rendering import Table

if TYPE_CHECKING:
    from workhorse.cli.demo.fleet import Fleet, Member
    from workhorse.cli.rendering import Renderer
    from workhorse.domain.runs import RunState
    from workhorse.store.base.database import Store

_DRAW_S: Final = 0.2
_COUNTS_S: Final = 2.0
"""How often the counts are told where no table is drawn."""


class Stage:
    """Tells what happens, as it happens."""

    def __init__(self, renderer: Renderer, fleet: Fleet, draw: Callable[[Table], None]) -> None:
        self._renderer = renderer
        self._fleet = fleet
        self._draw = draw
        self._ledger = Ledger(fleet.folder / NAME)
        self._store: Store | None = None
        self._began = time.monotonic()
        self._drawn = 0.0
        self._counted = 0.0
        self._told = 0
        self._last_counts = ""
        self._people: Member | None = None
        self._heard = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def watch(self, store: Store) -> None:
        """Count this store's runs from now on."""
        self._store = store

    def lines(self) -> list[Line]:
        """Return the ledger so far, and tell what is new in it."""
        lines = self._ledger.lines()
        for at in range(self._told, len(lines)):
            line = lines[at]
            if line.event == ERROR:
                self.say(self._name(line.pid), f"{_short(line)} failed; it will be tried again")
            elif line.event == START and _died_before(lines[:at], line):
                self.say(self._name(line.pid), f"{_short(line)} goes on where it was cut off")
            elif line.event == EFFECT and _asked_before(lines[:at], line):
                self.say(self._name(line.pid), f"{_short(line)} asks again: {line.key}, known")
        self._told = len(lines)
        self._repeat_what_people_say()
        return lines

    def asked_for(self, stage: str) -> bool:
        """Whether an order has come to a stage by now."""
        return any(line.event == EFFECT and line.stage == stage for line in self.lines())

    def hear(self, people: Member) -> None:
        """Repeat from now on what this process says of people outside."""
        self._people = people

    def say(self, who: str, what: str) -> None:
        """Tell that something has happened."""
        at = self.elapsed_s
        self._renderer.event(
            {"event": "said", "at_s": round(at, 1), "who": who, "what": what},
            f"{at:5.1f} s  {who:<13} {what}",
        )

    def draw(self) -> None:
        """Show how things stand."""
        lines = self.lines()
        if self._store is None or self.elapsed_s - self._drawn < _DRAW_S:
            return
        self._drawn = self.elapsed_s
        from workhorse.store.operators import viewing

        counts = self._store.run(viewing.counts)
        if self._renderer.is_live:
            self._draw(self._table(lines, counts))
        elif self.elapsed_s - self._counted >= _COUNTS_S and _counts(counts) != self._last_counts:
            self._counted, self._last_counts = self.elapsed_s, _counts(counts)
            self.say("runs", self._last_counts)

    def explain_failure(self, problems: Sequence[str]) -> None:
        """Tell what does not add up, and the last words of each process."""
        for problem in problems:
            self.say("problem", problem)
        for member in self._fleet.members:
            for words in member.last_words():
                self.say(member.name, words)

    def _table(self, lines: Sequence[Line], counts: dict[RunState, int]) -> Table:
        ended = Counter(line.pid for line in lines if line.event == END)
        rows = [
            (
                member.name,
                str(member.pid),
                member.state if member.running or member.state != "working" else "done",
                len(in_hand(list(lines), member.pid)) if member.state == "working" else 0,
                ended[member.pid],
            )
            for member in self._fleet.members
        ]
        columns = ("process", "pid", "state", "in hand", "ended")
        return Table(columns, rows, title=f"runs: {_counts(counts)}")

    def _repeat_what_people_say(self) -> None:
        if self._people is None:
            return
        whole = self._people.output().split("\n")[:-1]
        for line in whole[self._heard :]:
            who, _, what = line.partition("\t")
            self.say(who, what)
        self._heard = len(whole)

    def _name(self, pid: int) -> str:
        return next((each.name for each in self._fleet.members if each.pid == pid), str(pid))


def _counts(counts: dict[RunState, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none yet"


def _short(line: Line) -> str:
    return f"{line.mark.task} {line.mark.run[-6:]}/{line.mark.fence}"


def _died_before(lines: Sequence[Line], line: Line) -> bool:
    """Whether an earlier activation of the run was cut off."""
    mine = [each for each in lines if each.mark.run == line.mark.run]
    return bool(mine) and mine[-1].event not in (ERROR, PAUSE)


def _asked_before(lines: Sequence[Line], line: Line) -> bool:
    return any(each.event == EFFECT and each.key == line.key for each in lines)
