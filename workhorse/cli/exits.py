"""The exit codes of the command line; they are an interface.

3 to 6 are a worker's own, see `workhorse.runtime.base.exits`.
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
BAD_NEWS: Final = 1
"""The command did its work, and what it has to say is bad."""
BAD_INPUT: Final = 2
"""Arguments, settings, the app or the schema are wrong; nothing was done."""
STORE_UNAVAILABLE: Final = 7
"""The database did not answer, or refused."""
BUG: Final = 70
"""An error that nobody foresaw."""
IO_ERROR: Final = 74
"""The operating system refused, e.g. to write the output to a disk that is full."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""Whoever read the output has gone, e.g. `| head -1`; what a shell shows for SIGPIPE."""
TERMINATED: Final = 143
