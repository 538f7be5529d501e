"""The driver: a fleet at work, a plan that breaks it, and the judge at its end."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from tests.faults.evidence import Evidence, Span, gather
from tests.faults.faults import FAULTS, SERVER, Fault
from tests.faults.fleet import Fleet, Hit
from tests.faults.flights import Flights
from tests.faults.judge import Verdict, judge
from tests.faults.plan import Step

ENDS: Final = frozenset({0, 3, 4, 5, -15, -9, 77})
"""How processes end that were told to, were killed, or whose handler exits; see docs/cli.md."""
REST_WITHIN_S: Final = 180.0
MOST_UNFINISHED: Final = 400
"""So many runs may wait: more would only wait, and be there at the end."""
ENOUGH_AFTER_S: Final = 30.0
_TRIALS: Final = 10
"""So often a fault is tried that finds the server taken away by another."""
_PATIENCE: Final = 3
"""So often before the server has to stay."""
_HEALS_WITHIN_S: Final = 60.0
_BETWEEN_S: Final = 0.3
"""The least rest between two faults of a kind."""


@dataclass
class Result:
    """How a campaign came out."""

    seed: int
    seconds: float
    verdict: Verdict
    evidence: Evidence
    times: Counter[str]
    """How often each fault was applied."""
    under_way: dict[str, Counter[int]]
    """For each fault, how often so many calls of handlers were under way when it struck."""
    unhealed: list[str]
    """Parts that did not come back by themselves."""
    misses: list[str]
    """Faults that the driver could not apply, or take back at once: nothing of the product's."""
    exits: Counter[int]
    oddities: list[str]
    """Ends of processes by their own backstop: legal, and looked into."""
    rest_s: float | None
    """How long it took from the last heal to the end of all runs; None where it never came."""
    log: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether all promises were kept."""
        return self.verdict.kept and not self.unhealed and self.rest_s is not None


class Campaign:
    """Breaks a fleet by a plan.

    Args:
        fleet: Not started yet.
        plan: Its steps.
        say: Is told each thing that happens, as a line.
        faults: Those that the plan names.
        seconds: How long producers may take, and a little longer.
        runs: Producers go on until all faults are healed, and until so many runs were accepted;
            by default they do what the fleet says, however long the faults take.
    """

    def __init__(
        self,
        fleet: Fleet,
        plan: Sequence[Step],
        *,
        say: Callable[[str], None],
        faults: Sequence[type[Fault]] = FAULTS,
        seconds: float = 0.0,
        runs: int | None = None,
    ) -> None:
        self._seconds = seconds
        self._runs = runs
        self._hits: list[Hit] = []
        self._fleet = fleet
        self._known = {fault.name: fault for fault in faults}
        self._plan = plan
        self._say = say
        self._began = 0.0
        self._log: list[str] = []
        self._lock = threading.Lock()
        self._server = threading.Lock()
        """Held while a fault takes the server away, or needs it to stay."""
        self._seen: dict[tuple[str, str, int], float] = {}
        self._over = threading.Event()
        self.times: Counter[str] = Counter()

    def run(self, seed: int) -> Result:
        """Do all of it; return what the judge says."""
        fleet = self._fleet
        self._began = time.monotonic()
        fleet.start()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        by_kind: dict[str, list[Step]] = defaultdict(list)
        for step in self._plan:
            by_kind[step.kind].append(step)
        tracks = [
            threading.Thread(target=self._track, args=(steps,), name=kind)
            for kind, steps in by_kind.items()
        ]
        for track in tracks:
            track.start()
        for track in tracks:
            track.join()
        self._note("all faults are healed")
        late = time.monotonic() + ENOUGH_AFTER_S + REST_WITHIN_S
        enough = self._began + self._seconds + ENOUGH_AFTER_S
        while not fleet.produced():
            time.sleep(0.2)
            if time.monotonic() > enough:  # the machine is slower than was thought
                fleet.enough()
            if self._runs is not None and fleet.accepted() >= self._runs:
                fleet.enough()
            if time.monotonic() > max(late, enough + REST_WITHIN_S):
                hung = ", ".join(each.name for each in fleet.producers if each.wanted)
                fleet.unhealed.append(f"a call never came back: {hung} did not end")
                break
        healed = time.monotonic()
        self._note("all runs are enqueued")
        rest_s = self._rest(healed)
        self._note(f"at rest after {rest_s and round(rest_s, 1)} s")
        self._over.set()
        watcher.join()
        codes = fleet.stop()
        for member in fleet.members:
            code = codes.get(member.name)
            if code not in (0, 3, 4, 5, -15):
                fleet.unhealed.append(f"{member.name} ended with {code} at the end")
            elif code in (3, 5) and rest_s is not None:
                # Nothing was under way any more, so what it cut short is a slot that never ends.
                last = member.process.output()[-2000:] if member.process is not None else ""
                fleet.unhealed.append(f"{member.name} held something at rest: {code}\n{last}")
            for by_itself in set(member.exits) - ENDS:
                fleet.unhealed.append(f"{member.name} ended by itself, with {by_itself}")
        self._note(f"ended: {codes}")
        spans = [Span(each.what, each.began, each.ended, each.group) for each in fleet.incidents]
        with fleet.admin() as connection:
            found = gather(
                connection, fleet.folder, lease_s=fleet.lease_s, spans=spans,
                seen=[(at, *end) for end, at in self._seen.items()],
            )  # fmt: skip
        verdict = judge(found)
        calls = [one for each in found.activations().values() for one in each]
        under_way = Flights(calls, fleet.lives()).by_fault(self._hits)
        return Result(
            seed, time.monotonic() - self._began, verdict, found, self.times, under_way,
            fleet.unhealed, fleet.misses, fleet.exits(), fleet.oddities, rest_s, self._log,
        )  # fmt: skip

    def _track(self, steps: Sequence[Step]) -> None:
        for step in steps:
            ahead = self._began + step.at - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            try:
                self._apply(step)
            except Exception:  # noqa: BLE001 - a fault that fails is reported, the others go on
                text = traceback.format_exc(limit=-3)
                last = text.strip().rpartition("\n")[2]
                self._fleet.misses.append(f"{step.fault} ({step.seed}): {last}")
                self._note(f"{step.fault}: {text}")

    def _apply(self, step: Step) -> None:
        """Apply a fault, leave it to work, take it back.

        Where another track has taken the server away, it is tried again and counted once; after a
        few trials that track has to wait until it is applied.
        """
        alone = step.kind == SERVER
        for trial in range(1, _TRIALS + 1):
            fault: Fault = self._known[step.fault]()
            with self._server if alone or trial > _PATIENCE else nullcontext():
                began = time.monotonic()
                try:
                    did = _done(fault.apply(self._fleet, random.Random(step.seed)))
                except psycopg.Error:
                    self._fleet.struck()
                    self._heal(fault)
                    if trial == _TRIALS:
                        raise
                    time.sleep(0.3)
                    continue
                except BaseException:
                    self._heal(fault)
                    raise
                at, group = self._fleet.struck() or (began, 0)
                with self._lock:
                    self._hits.append(Hit(step.fault, at, group))
                    self.times[step.fault] += 1
                self._note(f"{step.kind}: {step.fault}: {did}")
                if alone:
                    time.sleep(step.holds_s)
                    self._heal(fault)
            if not alone:
                time.sleep(step.holds_s)
                self._heal(fault)
            time.sleep(_BETWEEN_S)
            return

    def _heal(self, fault: Fault) -> None:
        deadline = time.monotonic() + _HEALS_WITHIN_S
        while True:
            try:
                _done(fault.heal(self._fleet))
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)
            else:
                return

    def _watch(self) -> None:
        """Look at outcomes as they come, so that one which changes later is seen."""
        last = time.monotonic()
        while not self._over.wait(2.0):
            with contextlib.suppress(psycopg.Error), self._fleet.admin() as connection:
                asked = time.monotonic()
                rows = connection.execute(
                    "select id, state, fence, extract(epoch from finished_at)::float8"
                    " from workhorse.outcomes"
                    " where finished_at > clock_timestamp() - %s * interval '1 second'",
                    [asked - last + 10],
                ).fetchall()
                offset = time.time() - time.monotonic()
                for run, state, fence, finished in rows:
                    self._seen.setdefault((str(run), state, fence), finished - offset)
                last = asked
                self._fleet.pause_producers(
                    self._runs is not None and self._fleet.unfinished() > MOST_UNFINISHED
                )

    def _rest(self, since: float) -> float | None:
        while not self._fleet.at_rest():
            if time.monotonic() - since > REST_WITHIN_S:
                return None
            time.sleep(0.25)
        # What ended last is pruned of its links within a pass or two.
        rest = time.monotonic() - since
        time.sleep(3.0)
        return rest

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:8.1f} s  {text}"
        with self._lock:
            self._log.append(line)
        self._say(line)


def _done(returned: Any) -> Any:
    return asyncio.run(returned) if inspect.iscoroutine(returned) else returned
