"""A task that does nothing, for measurements: writing a ledger would be all that is measured."""

from __future__ import annotations

from workhorse import Context, Workhorse

app = Workhorse()


@app.task("faults.bare", queue="work")
def bare(ctx: Context, payload: int) -> None:
    """Do nothing."""
