"""The exit codes of a worker process; they are an interface of the command line."""

from __future__ import annotations

from typing import Final

STOPPED: Final = 0
"""A signal, or `stop`, ended the worker, and every run had ended by itself."""
HANDED_BACK: Final = 3
"""A signal ended the worker, and runs were cut short: they are ready again, or their leases expire.
"""
FORCED: Final = 4
"""A second signal ended the process at once; leases expire and are recovered."""
BACKSTOP: Final = 5
"""The shutdown itself hung and was cut off; leases expire and are recovered."""
DIED: Final = 6
"""A part of the worker could not go on: the schema does not fit, or a loop cannot be restarted."""
