"""A report of parts: children that a handler waits for, and runs that come after others.

Run it with `python examples/report.py`. The testing kit stands in for the database and the
workers.
"""

from __future__ import annotations

from workhorse import ChildFailedError, Context, NonRetryableError, Workhorse
from workhorse.errors import RunFailedError
from workhorse.testing import Kit

app = Workhorse()


@app.task("reports.total")
def total(ctx: Context, names: list[str]) -> str:
    parts = ctx.children("regions", region, names, max_parallel=2, on_failure="return")
    found = [part for part in parts if not isinstance(part, ChildFailedError)]
    pages = ctx.child("layout", layout, sum(found), priority=80)
    return f"{sum(found)} euros on {pages} pages, from {len(found)} of {len(parts)} regions"


@app.task("reports.region")
def region(name: str) -> int:
    if name == "nowhere":
        raise NonRetryableError("there is no such region")
    return len(name) * 100


@app.task("reports.layout")
def layout(euros: int) -> int:
    return 1 + euros // 1_000


@app.task("reports.mail")
def mail(to: str) -> str:
    return f"mailed to {to}"


def main() -> None:
    """Make a report with a region too many, and mail it when it is there."""
    with Kit(app) as kit:
        report = total.enqueue(["north", "east", "nowhere", "south"])
        typo = region.enqueue("nowhere")
        mails = [
            mail.enqueue("ada", after=[report]),
            mail.enqueue("bob", after=[report, typo]),
            mail.enqueue("eve", after=[report.id, typo.id], on_failure="run"),
        ]
        kit.run_until_idle()

        print(report.result())
        for sent in mails:
            try:
                print(sent.result())
            except RunFailedError as error:
                print(f"not mailed: {error.reason}, {error.error_type}")
        for name in ("total", "region", "layout", "mail"):
            print(f"{name}: {len(app.admin.list_runs(task=f'reports.{name}'))} runs")


if __name__ == "__main__":
    main()
