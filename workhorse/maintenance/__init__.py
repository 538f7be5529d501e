"""Recover, promote, publish: one bounded page a transaction.

Maintenance heals what was killed on the way: it needs no task code, no slot and no worker, so it
works while all of those are busy, paused or broken.
"""

from workhorse.maintenance.loop import Maintenance, Pass
from workhorse.maintenance.measuring import EmfWriter, measure_step
from workhorse.maintenance.steps import STEPS

__all__ = ["STEPS", "EmfWriter", "Maintenance", "Pass", "measure_step"]
