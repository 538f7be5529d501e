"""Python's garbage collector, in a process that is a worker's alone.

Runs come and go by the thousand, each with some thirty objects that are freed by their counts; none
of them is garbage that has to be looked for. With the collector's own setting it looks at them, and
time and again at all that was ever imported, for about a third of a worker's work.
"""

from __future__ import annotations

import gc
from typing import Final

_ALLOCATIONS: Final = 10_000
"""How many more objects made than freed have the collector look at the youngest."""


def tend_garbage() -> None:
    """Have the collector leave alone what is here already, and look at what is new less often.

    For whoever owns the process: `Worker.run` and the command line. Cycles are collected still, a
    little later. A process whose collector was set to be less eager, or is off, is left as it is.
    """
    young, *others = gc.get_threshold()
    if not gc.isenabled() or not 0 < young < _ALLOCATIONS:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *others)
