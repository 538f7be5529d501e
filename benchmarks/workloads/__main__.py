"""`python -m benchmarks.workloads FAMILY NAME --url URL [--postmaster PID]`: one, as JSON."""

from __future__ import annotations

import argparse
import importlib
import json

from benchmarks.workloads.base import Place


def main() -> None:
    """Run it; print its figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("name")
    parser.add_argument("--url", required=True)
    parser.add_argument("--postmaster", type=int, default=0)
    told = parser.parse_args()
    # One family alone: what another imports is memory of its own.
    workload = getattr(importlib.import_module(f"benchmarks.workloads.{told.family}"), told.name)
    print(json.dumps(workload(Place(told.url, told.postmaster))), flush=True)


if __name__ == "__main__":
    main()
