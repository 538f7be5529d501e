"""`workhorse runs replay`: would this version of a handler still replay an exported run?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from workhorse.cli import exits
from workhorse.cli.inputs import read_text
from workhorse.cli.invocation import Invocation

if TYPE_CHECKING:
    from workhorse.app import Workhorse


def replay(
    invocation: Invocation,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="What `runs export` wrote; `-` is standard input."),
    ],
    optional: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A boundary inside the operation of another; may be repeated."
        ),
    ] = None,
) -> int:
    """Check that the app's handler still takes the way of an exported run; stores nothing."""
    from workhorse.client.importing import run_of
    from workhorse.client.replay_check import check_replay
    from workhorse.errors import ReplayDivergenceError

    exported = read_text("-" if file == "-" else f"@{file}")
    run = run_of(exported).claimed
    app = invocation.open(tasks=True)
    task = app.registry.require(run.task)
    answer: dict[str, object] = {"id": run.id, "task": task.name}
    try:
        with _apart(app):
            check = check_replay(task, exported, optional=optional or ())
    except ReplayDivergenceError as found:
        parts = {
            "boundary": found.boundary,
            "expected": found.expected,
            "came": found.came,
            "place": found.place,
        }
        invocation.renderer.document(
            answer | {"replays": False} | parts, str(found), on_one_line=True
        )
        return exits.BAD_NEWS
    count = len(check.reached)
    invocation.renderer.document(
        answer | {"replays": True, "reached": check.reached, "ended": check.ended},
        f"run {run.id} replays: {count:,} boundar{'y' if count == 1 else 'ies'}, "
        f"then {check.ended}",
        on_one_line=True,
    )
    return exits.OK


@contextmanager
def _apart(app: Workhorse) -> Iterator[None]:
    """Keep what a handler does with its app away from the app's own store and lane."""
    from workhorse.app import Workhorse
    from workhorse.settings import overriding
    from workhorse.store.base.throwaway import throwaway_database

    environment = app.settings.environment
    with throwaway_database(environment) as url, overriding(
        {"database_url": url, "lane": "polling", "environment": environment}
    ):  # fmt: skip
        other = Workhorse(registry=app.registry)
        try:
            with app.replaced_by(other):
                yield
        finally:
            other.close()
