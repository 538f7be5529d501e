"""`workhorse waits list` and `complete`, `workhorse tokens complete`, `workhorse runs signal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from workhorse.cli import exits
from workhorse.cli.inputs import os_user, parse_value
from workhorse.cli.invocation import Invocation
from workhorse.cli.options import command
from workhorse.cli.run_acts import ByOption, WhyOption

if TYPE_CHECKING:
    from workhorse.domain.boundaries import DeliveryResult

_VALUE_HELP = "The value, as JSON; `-` reads it from standard input, `@path` from a file."
RunIdArgument = Annotated[str, typer.Argument(metavar="RUN_ID", help="As `runs list` shows it.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The wait's name.")]
ValueArgument = Annotated[str, typer.Argument(metavar="JSON", help=_VALUE_HELP)]
KeyOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Idempotency key: a repetition is known as one.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Look at what runs wait for, and decide for them.", rich_markup_mode=None
    )
    command(group, "list", list_waits)
    command(group, "complete", complete)
    app.add_typer(group, name="waits")
    group = typer.Typer(help="Complete wait tokens.", rich_markup_mode=None)
    command(group, "complete", complete_token)
    app.add_typer(group, name="tokens")


def list_waits(
    invocation: Invocation,
    run: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Only what this run waits for.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only waits of this queue's runs.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Only these: signal, human, token, child or timer."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many, up to 1,000.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Go on behind the last one of a page.")
    ] = None,
) -> int:
    """List open waits, the oldest run first, with the context of those for people."""
    from workhorse.cli.views import wait_document, waits_table

    admin = invocation.open().admin
    found = admin.list_waits(run, queue=queue, kind=kind, limit=limit, after=after)
    more = found[-1].cursor if len(found) == limit else None
    invocation.renderer.document(
        {"waits": [wait_document(wait) for wait in found], "after": more}, waits_table(found)
    )
    if more is not None:
        invocation.renderer.note(f"more: --after {more!r}")
    return exits.OK


def complete(
    invocation: Invocation,
    run_id: RunIdArgument,
    name: NameArgument,
    value: ValueArgument,
    by: ByOption = None,
    why: WhyOption = "",
    key: KeyOption = None,
) -> int:
    """Decide for a run that waits for a person; who and why are audited."""
    decision = parse_value("decision", value)
    result = invocation.open().complete_human_wait(
        run_id, name, decision, by=by or os_user(), why=why, idempotency_key=key
    )
    what = f"decision {name!r} for run {run_id}"
    return _answer(invocation, result, what, id=run_id, name=name)


def signal(
    invocation: Invocation,
    run_id: RunIdArgument,
    name: NameArgument,
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help=f"{_VALUE_HELP} Left out, it is null.")
    ] = None,
    key: KeyOption = None,
) -> int:
    """Send a run a signal; it is kept where the run does not wait for it yet."""
    sent = None if value is None else parse_value("signal", value)
    result = invocation.open().send_signal(run_id, name, sent, idempotency_key=key)
    return _answer(invocation, result, f"signal {name!r} for run {run_id}", id=run_id, name=name)


def complete_token(
    invocation: Invocation,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The token's reference.")],
    value: ValueArgument,
    key: KeyOption = None,
) -> int:
    """Complete a wait token: all runs that wait for it go on."""
    given = parse_value("value of the token", value)
    result = invocation.open().complete_token(ref, given, idempotency_key=key)
    return _answer(invocation, result, "the token's value")


def _answer(invocation: Invocation, result: DeliveryResult, what: str, **about: Any) -> int:
    told = _TOLD[result.value]
    invocation.renderer.document({**about, "result": result}, f"{what}: {told}")
    if result.value == "kept" and not invocation.renderer.json:
        _tell_what_is_open(invocation, about["id"])
    return exits.BAD_NEWS if result.value in _NOT_STORED else exits.OK


def _tell_what_is_open(invocation: Invocation, run_id: str) -> None:
    """Name what the run does wait for: a mistyped name is no error, and is kept for ever."""
    waits = invocation.open().admin.list_waits(run_id, limit=_NAMED + 1)
    if waits:
        named = [f"{wait.kind} {wait.name!r}" for wait in waits[:_NAMED]]
        more = ", ..." if len(waits) > _NAMED else ""
        invocation.renderer.note(f"the run waits now for {', '.join(named)}{more}")


_NAMED = 5
_TOLD = {
    "delivered": "delivered",
    "kept": "kept until the run asks for it",
    "duplicate": "delivered before, under the same key",
    "already_settled": "not stored: another, or a time-out, came first",
    "run_finished": "not stored: the run has ended",
}
_NOT_STORED = frozenset({"already_settled", "run_finished"})
