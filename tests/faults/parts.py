"""A full run, in parts: campaigns on fleets of their own, each over some of the faults.

Hundreds of each fault on one fleet would take most of a day, or leave it no time to work. So each
part takes a share of the faults of some tracks, which go on at once, and a full run does several
parts at a time. What set-backs take excuses much, so they have a part of their own; the others are
judged without that excuse.

    python -m tests.faults --full                all parts; those whose reports are there stay
    python -m tests.faults --full --anew         all parts, also those
    python -m tests.faults --full --part wires-2 one of them
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.faults.faults import (
    BROKER,
    DEFAULTS,
    FREEZES,
    KILLS,
    LOCKS,
    SERVER,
    SESSIONS,
    STOPS,
    Fault,
)
from tests.faults.faults.setting_back import SetBack
from tests.faults.wires import APART, WIRED

TIMES: Final = 200
_PROCESSES: Final = frozenset({KILLS, FREEZES, STOPS, BROKER})
_DATABASE: Final = frozenset({SERVER, SESSIONS, DEFAULTS, LOCKS})
_COMPANY: Final = frozenset({KILLS, FREEZES})
"""What goes on beside set-backs; what needs the server would seldom find it."""
_COSTS_S: Final = {
    KILLS: 1.0, FREEZES: 6.0, STOPS: 3.0, SERVER: 5.5, SESSIONS: 4.0, DEFAULTS: 3.0, LOCKS: 1.0,
    BROKER: 2.5,
}  # fmt: skip
"""About how long a fault of a kind takes beside what it is held, with a time to work after it."""
_SET_BACK_S: Final = 4.5
_REST_S: Final = 0.3


@dataclass(frozen=True)
class Part:
    """A campaign of a full run."""

    name: str
    times: dict[str, int]
    """How often each of its faults comes."""
    seconds: float
    """About how long it takes."""
    fleet: dict[str, Any] = field(default_factory=dict)
    """What its fleet has that others have not."""


def parts(faults: Iterable[type[Fault]], times: int = TIMES) -> list[Part]:
    """Return the parts of a run that applies each fault so many times at least."""
    faults = list(faults)
    with_set_backs = SetBack in faults
    faults = [each for each in faults if each is not SetBack]
    processes = [each for each in faults if each.kind in _PROCESSES]
    database = [each for each in faults if each.kind in _DATABASE]
    wired = [each for each in faults if each.kind in WIRED]
    apart = [each for each in faults if each.kind in APART]
    company = [each for each in faults if each.kind in _COMPANY]
    third, half = math.ceil(times / 3), math.ceil(times / 2)
    found = []
    for nth in ("1", "2", "3"):
        if database:
            found.append(_part(f"database-{nth}", database, third, company, third // 3))
        if wired:
            found.append(_part(f"wires-{nth}", wired, third))
        if processes:
            few = [each for each in database if each.kind == SESSIONS]
            found.append(_part(f"processes-{nth}", processes, third, few, third // 3, workers=6))
    if with_set_backs:
        found.append(_part("set-backs", [SetBack], times, company, third))
    if apart:
        name = "pooler-and-clocks"
        found += [_part(f"{name}-{nth}", apart, half, company, half // 3) for nth in ("1", "2")]
    return found


def _part(
    name: str,
    faults: Sequence[type[Fault]],
    times: int,
    beside: Sequence[type[Fault]] = (),
    less: int = 0,
    **fleet: Any,
) -> Part:
    counts = {each.name: times for each in faults} | {each.name: less for each in beside}
    tracks: dict[str, float] = {}
    for each in (*faults, *beside):
        takes = _SET_BACK_S if each is SetBack else _COSTS_S.get(each.kind, 1.0)
        takes += sum(each.holds) / 2 + _REST_S
        tracks[each.kind] = tracks.get(each.kind, 0.0) + takes * counts[each.name]
    return Part(name, counts, max(tracks.values(), default=0.0), fleet)


def run_all(
    wanted: Sequence[Part], seed: int, folder: Path, logs: Path, *, at_once: int, anew: bool
) -> None:
    """Run parts, each in a process of its own; those whose reports are there are left as they are.

    Args:
        folder: Where their reports go, each when it is done.
        logs: Where what they say goes.
        at_once: How many run at a time.
        anew: Whether to run also those whose reports are there.
    """
    left = [part for part in wanted if anew or not report_of(folder, part).exists()]
    for part in left:
        report_of(folder, part).unlink(missing_ok=True)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                part = left.pop(0)
            log = logs / f"{part.name}.log"
            print(f"part {part.name} begins, about {part.seconds / 60:.0f} minutes: {log}")
            command = ["-m", "tests.faults", "--full", "--part", part.name, "--seed", str(seed)]
            with log.open("w") as said:
                code = subprocess.run(
                    [sys.executable, *command], stdout=said, stderr=said, check=False
                ).returncode
            print(f"part {part.name} has ended: {'all was kept' if code == 0 else 'NOT all'}")

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def report_of(folder: Path, part: Part) -> Path:
    """Return where a part's report is."""
    return folder / f"{part.name}.json"
