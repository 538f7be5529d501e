"""The `workhorse` command.

Nothing heavy is imported before a command needs it, so that `workhorse --help` answers at once.

Source: docs/cli.md
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line that the process was started with, and exit."""
    try:
        from workhorse.cli.entry import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were imported
        code = 130
    sys.exit(code)
