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
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from tests.faults.evidence import Evidence, Span, gather
from tests.faults.faults import FAULTS, Fault
from tests.faults.fleet import Fleet
from tests.faults.judge import Verdict, judge
from tests.faults.plan import Step

ENDS: Final = frozenset({0, 3, 4, 5, -15, -9, 77})
"""How processes end that were told to, were killed, or whose handler exits; see docs/cli.md."""
REST_WITHIN_S: Final = 180.0
ENOUGH_AFTER_S: Final = 30.0


@dataclass
class Result:
    """How a campaign came out."""

    seed: int
    seconds: float
    verdict: Verdict
    evidence: Evidence
    times: Counter[str]
    """How often each fault was applied."""
    unhealed: list[str]
    """Parts that did not come back by themselves, and faults that could not be applied."""
    exits: Counter[int]
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
    """

    def __init__(
        self,
        fleet: Fleet,
        plan: Sequence[Step],
        *,
        say: Callable[[str], None],
        faults: Sequence[type[Fault]] = FAULTS,
        seconds: float = 0.0,
    ) -> None:
        self._seconds = seconds
        self._fleet = fleet
        self._known = {fault.name: fault for fault in faults}
        self._plan = plan
        self._say = say
        self._began = 0.0
        self._log: list[str] = []
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, str, int]] = {}
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
        enough = self._began + self._seconds + ENOUGH_AFTER_S
        while not fleet.produced():
            time.sleep(0.2)
            if time.monotonic() > enough:  # the machine is slower than was thought
                fleet.enough()
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
            for by_itself in set(member.exits) - ENDS:
                fleet.unhealed.append(f"{member.name} ended by itself, with {by_itself}")
        self._note(f"ended: {codes}")
        spans = [Span(each.what, each.began, each.ended, each.group) for each in fleet.incidents]
        with fleet.admin() as connection:
            found = gather(
                connection, fleet.folder, lease_s=fleet.lease_s, spans=spans,
                seen=[(at, run, state, fence) for run, (at, state, fence) in self._seen.items()],
            )  # fmt: skip
        verdict = judge(found)
        return Result(
            seed, time.monotonic() - self._began, verdict, found, self.times, fleet.unhealed,
            fleet.exits(), rest_s, self._log,
        )  # fmt: skip

    def _track(self, steps: Sequence[Step]) -> None:
        for step in steps:
            ahead = self._began + step.at - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            fault: Fault = self._known[step.fault]()
            try:
                self._apply(fault, step)
            except Exception:  # noqa: BLE001 - a fault that fails is reported, the others go on
                text = traceback.format_exc(limit=-3)
                self._fleet.unhealed.append(f"{step.fault} ({step.seed}): {text}")
                self._note(f"{step.fault}: {text}")

    def _apply(self, fault: Fault, step: Step) -> None:
        try:
            did = _done(fault.apply(self._fleet, random.Random(step.seed)))
            self.times[step.fault] += 1
            self._note(f"{step.kind}: {step.fault}: {did}")
            time.sleep(step.holds_s)
        finally:
            _done(fault.heal(self._fleet))

    def _watch(self) -> None:
        """Look at outcomes as they come, so that one which changes later is seen."""
        last = time.monotonic()
        while not self._over.wait(2.0):
            with contextlib.suppress(psycopg.Error), self._fleet.admin() as connection:
                asked = time.monotonic()
                rows = connection.execute(
                    "select id, state, fence from workhorse.outcomes"
                    " where finished_at > clock_timestamp() - %s * interval '1 second'",
                    [asked - last + 10],
                ).fetchall()
                for run, state, fence in rows:
                    self._seen.setdefault(str(run), (asked, state, fence))
                last = asked

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
