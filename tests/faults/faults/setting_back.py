"""PostgreSQL is set back to an older copy of its files, as by a restore or a lossy failover.

What was committed after the copy is gone, so fences may be issued a second time. The judge knows
the interval: runs accepted in it may be gone, and what ended in it may end again.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from typing import TYPE_CHECKING, ClassVar

from tests.faults.faults import SERVER, register

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet

SET_BACK = "set back"


@register
class SetBack:
    """Stop, copy, start; a while later stop at once, put the copy back, start."""

    name: ClassVar[str] = "PostgreSQL set back to an older copy"
    kind: ClassVar[str] = SERVER
    holds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self) -> None:
        self._running = True

    def apply(self, fleet: Fleet, rng: random.Random) -> str:
        server = fleet.server
        older = server.folder / "older"
        shutil.rmtree(older, ignore_errors=True)
        began = time.monotonic()
        self._running = False
        server.stop(how=signal.SIGQUIT)
        copied_at = time.monotonic()
        _copy(server.data, older)
        server.start()
        self._running = True
        fleet.note("database away", began)

        time.sleep(rng.uniform(0.3, 2.5))  # what is lost
        stopped = time.monotonic()
        self._running = False
        server.stop(how=signal.SIGQUIT)
        server.data.rename(server.folder / "newer")
        older.rename(server.data)
        shutil.rmtree(server.folder / "newer")
        # From the copy to here: what was committed meanwhile is gone.
        fleet.note(SET_BACK, copied_at)
        server.start()
        self._running = True
        fleet.note("database away", stopped)
        return f"by {stopped - copied_at:.1f} s"

    def heal(self, fleet: Fleet) -> None:
        if not self._running:
            fleet.server.start()


def _copy(source: object, target: object) -> None:
    import subprocess

    # As root it keeps the owner, which PostgreSQL insists on; sockets lie elsewhere.
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
