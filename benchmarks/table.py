"""`python -m benchmarks.table [--write]`: the figures as Markdown, from the results of the benches.

Prints the tables; with `--write` it puts them between their marks in README.md and in
docs/performance.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.figures import shown

RESULTS = Path(__file__).parent / "results"

# What a row says, its figures, and how they are put.
_OURS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("drain, no-op async handlers", ("drain_noop_async_per_s",), "{} runs/s"),
    ("share of the raw loop", ("drain_share_of_raw",), "{}"),
    ("drain, no-op plain handlers", ("drain_noop_plain_per_s",), "{} runs/s"),
    ("drain, batches of 100", ("drain_noop_batch_per_s",), "{} runs/s"),
    (
        "CPU a run: worker, database",
        ("drain_client_cpu_us", "drain_server_cpu_us"),
        "{} µs, {} µs",
    ),
    ("three-step flows", ("flows3_per_s",), "{} flows/s"),
    ("enqueue, 1,000 a call", ("enqueue_bulk_per_s",), "{} runs/s"),
    ("enqueue, one caller, one a call", ("enqueue_single_per_s",), "{} runs/s"),
    (
        "enqueue, 64 callers that share commits: tasks, threads",
        ("enqueue_64_tasks_per_s", "enqueue_64_threads_per_s"),
        "{} runs/s, {} runs/s",
    ),
    (
        "idle worker, `notify`, other process: p50, p99",
        ("latency_notify_p50_ms", "latency_notify_p99_ms"),
        "{} ms, {} ms",
    ),
    (
        "worker at half of its throughput: p50, p99",
        ("latency_half_load_p50_ms", "latency_half_load_p99_ms"),
        "{} ms, {} ms",
    ),
    ("drain over SQS, one wakeup for ten runs", ("sqs_drain_per_s",), "{} runs/s"),
    ("memory of that worker after 10,000 runs", ("worker_rss_mb",), "{} MB"),
    ("SQLite: drain", ("sqlite_drain_noop_per_s",), "{} runs/s"),
    ("SQLite: three-step flows", ("sqlite_flows3_per_s",), "{} flows/s"),
    ("write-ahead log a run", ("wal_bytes_per_run",), "{} bytes"),
)
_SHORT = {
    "drain, no-op async handlers",
    "drain, batches of 100",
    "three-step flows",
    "enqueue, 1,000 a call",
    "enqueue, 64 callers that share commits: tasks, threads",
    "idle worker, `notify`, other process: p50, p99",
    "drain over SQS, one wakeup for ten runs",
    "SQLite: drain",
}
_PEERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("enqueue one, /s", ("enqueue_single_per_s",)),
    ("enqueue bulk, /s", ("enqueue_bulk_per_s",)),
    ("drain, /s", ("drain_per_s",)),
    ("CPU a job, µs", ("drain_client_us", "drain_server_us")),
    ("idle p50 / p99, ms", ("latency_p50_ms", "latency_p99_ms")),
    ("flows, /s", ("flows3_per_s",)),
)


def main() -> int:
    """Print the tables, or write them."""
    latest, compared = _read("latest.json"), _read("compare.json")
    tables = {
        ("README.md", "figures"): ours(latest, only=_SHORT),
        ("docs/performance.md", "figures"): ours(latest),
        ("docs/performance.md", "peers"): peers(compared),
    }
    for (name, mark), table in tables.items():
        if "--write" not in sys.argv[1:]:
            print(f"{name}, {mark}:\n\n{table}\n")
        elif table:
            file = ROOT / name
            file.write_text(between(file.read_text(), mark, table))
    return 0


def ours(latest: Mapping[str, Any], only: set[str] | None = None) -> str:
    """Return the table of what `make bench` has measured; rows without figures are left out."""
    rows = []
    for what, names, form in _OURS:
        figures = [latest.get(name) for name in names]
        if (only is None or what in only) and all(figures):
            rows.append([what, form.format(*map(shown, figures))])
    return _markdown(["", "median of three rounds"], rows) + _measured(latest) if rows else ""


def peers(compared: Mapping[str, Any]) -> str:
    """Return the table of what `make bench-compare` has measured, with what is missing."""
    rows, gaps = [], []
    for name, entrant in compared.get("entrants", {}).items():
        settings = entrant["settings"]
        taken = [f"({each} {value})" for each, value in settings.get("taken", {}).items()]
        named = " ".join([name, *filter(None, [settings.get("version")]), *taken])
        rows.append(
            [
                named,
                *(" / ".join(shown(entrant.get(name)) for name in names) for _, names in _PEERS),
            ]
        )
        gaps += [f"{name}, {what}: {why}" for what, why in entrant.get("gaps", {}).items()]
    if not rows:
        return ""
    table = _markdown(["", *(head for head, _ in _PEERS)], rows) + _measured(compared)
    return "\n".join([table, *(f"- Not measured: {gap}" for gap in gaps)])


def between(text: str, mark: str, table: str) -> str:
    """Return a text with a table between its marks.

    Raises:
        ValueError: The marks are not there.
    """
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the marks {begin} and {end} are missing")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _measured(document: Mapping[str, Any]) -> str:
    conditions = document["conditions"]
    return (
        f"\n\nMeasured {conditions['date']} on {conditions['cpus']} cores that client and server"
        f" share, Python {conditions['python']}, PostgreSQL {conditions['postgresql']}."
    )


def _read(name: str) -> dict[str, Any]:
    file = RESULTS / name
    read: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return read


if __name__ == "__main__":
    sys.exit(main())
