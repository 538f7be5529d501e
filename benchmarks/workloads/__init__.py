"""The workloads of `make bench`: each in a process of its own, on a fresh, migrated database."""

from __future__ import annotations

from benchmarks.figures import percentile

__all__ = ["percentile"]
