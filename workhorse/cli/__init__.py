"""The `workhorse` command.

Nothing heavy is imported before a command needs it, so that `workhorse --help` answers at once.

Source: docs/cli.md
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run the command line that the process was started with, and exit."""
    if os.getpid() == 1:
        # The kernel keeps from process 1 what it has set no handler for: a SIGTERM that comes
        # before the worker or the command listens for it, while modules are imported, would be
        # lost, and all would go on until the SIGKILL, with leases held by then.
        signal.signal(signal.SIGTERM, _end)
    try:
        from workhorse.cli.entry import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were imported
        code = 130
    sys.exit(code)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    """End as any other process does that has no handler."""
    os._exit(128 + signal.SIGTERM)
