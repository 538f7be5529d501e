"""`python -m benchmarks.raw loop|steps [options]`: one raw loop on a PostgreSQL of its own."""

from __future__ import annotations

import json
import sys

from benchmarks.environments import UnavailableError
from benchmarks.raw.measuring import raw
from benchmarks.server import bench_server


def main() -> int:
    """Run it; print its answer."""
    if sys.argv[1:2] not in (["loop"], ["steps"]):
        print(__doc__, file=sys.stderr)
        return 2
    with bench_server() as server:
        try:
            answer = raw(server, sys.argv[1], sys.argv[2:])
        except UnavailableError as error:
            print(f"{sys.argv[1]}: {error}", file=sys.stderr)
            return 1
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
