"""Several processes on one SQLite file: the write lock is theirs all, and none sees it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.store.acting import put_many, rows
from tests.store.invariants import check_invariants
from tests.support.processes import Processes
from workhorse.store.base.database import Store

_WORKER = """
    import sys
    from tests.store.acting import a_token, end, lease_of, put, take
    from workhorse.store.base.database import Store
    from workhorse.store.live.leasing import renew
    from workhorse.store.lifecycle.sweeping import promote

    store = Store.open(sys.argv[1])
    print("begun", flush=True)
    done = 0
    while True:
        claimed = take(store, scan=True, free=5).runs
        if not claimed:
            break
        store.run(renew, [lease_of(run) for run in claimed], 60_000)
        for run in claimed:
            done += len(end(store, run).written)
        store.run(promote)
        put(store, queue="other")
    store.close()
    print("done", done)
"""


def test_four_processes_share_a_file(sqlite_url: str, processes: Processes, tmp_path: Path) -> None:
    store = Store.open(sqlite_url)
    put_many(store, 200)
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(_WORKER))
    root = Path(__file__).parents[2]

    fleet = [
        processes.python("-W", "error", program, sqlite_url, env={"PYTHONPATH": str(root)})
        for _ in range(4)
    ]

    done = [int(each.wait_for(r"^done (\d+)$", within=120)[1]) for each in fleet]
    assert [each.wait() for each in fleet] == [0, 0, 0, 0]
    assert sum(done) == 200
    assert rows(store, "select count(*) from {s}outcomes") == [(200,)]
    check_invariants(store)
    store.close()
