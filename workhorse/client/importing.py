"""An exported run, read back: what a handler would get if it were claimed now.

Source: docs/design.md, section 7
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from workhorse.client.exporting import FORMAT
from workhorse.domain.boundaries import Boundary, BoundaryKind, Delivered, DeliveryState, History
from workhorse.domain.ids import parse_run_id
from workhorse.domain.runs import ClaimedRun, Lease, RunState
from workhorse.domain.showing import shown
from workhorse.errors import ConfigurationError

P = TypeVar("P")
_NOBODYS_TOKEN: Final = 1


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """A run out of a document.

    `durations_known` says that `wake_at - created_at` is what a relative wait was told: not in a
    rerun, whose boundaries were copied later than they were made.
    """

    claimed: ClaimedRun
    state: RunState
    durations_known: bool


def run_of(document: object) -> ImportedRun:
    """Return the run that `app.admin.export` or `workhorse runs export` has written.

    Args:
        document: The document, as its JSON text or decoded.

    Raises:
        ConfigurationError: It is no such document, or of a newer format.
    """
    if isinstance(document, str | bytes):
        try:
            document = json.loads(document)
        except ValueError as error:
            raise ConfigurationError(f"the exported run is no JSON: {error}") from None
        except RecursionError:
            raise ConfigurationError("the exported run is no JSON: nested too deep") from None
    if not isinstance(document, Mapping) or "workhorse_export" not in document:
        raise ConfigurationError(
            "that is no exported run; `workhorse runs export` and app.admin.export write them"
        )
    if document["workhorse_export"] != FORMAT:
        raise ConfigurationError(
            f"the exported run is of format {shown(document['workhorse_export'])}, and this "
            f"version reads {FORMAT}; export it again, or check it with the version that wrote it"
        )
    try:
        return _run(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the exported run is damaged ({type(error).__name__}: {shown(str(error))}); "
            "export it again"
        ) from error


def _run(document: Mapping[str, Any]) -> ImportedRun:
    run = document["run"]
    run_id = parse_run_id(run["id"])
    created_at = _known(run["created_at"])
    state = RunState(_a(str, run["state"]))
    deliveries = tuple(_delivery(each) for each in document["deliveries"])
    seen = _last_instant(document) if not state.finished else None
    boundaries = tuple(_boundary(each, seen) for each in document["boundaries"])
    claimed = ClaimedRun(
        id=run_id,
        task=_a(str, run["task"]),
        queue=_a(str, run["queue"]),
        payload=_text(document["payload"]),
        attempt=_a(int, run["attempt"]),
        lease=Lease(run_id, fence=_a(int, run.get("fence", 1)), token=_NOBODYS_TOKEN),
        session=_text_or_none(run.get("session")),
        tags=tuple(_a(str, tag) for tag in _a(list, run.get("tags", []))),
        key=_text_or_none(run.get("key")),
        created_at=created_at,
        started_at=_instant(run.get("started_at")) or created_at,
        history=History(
            boundaries,
            deliveries,
            count=len(boundaries),
            last_seq=max((each.seq for each in boundaries), default=0),
        ),
    )
    return ImportedRun(claimed, state, durations_known="rerun_of" not in run)


def _boundary(each: Mapping[str, Any], seen: datetime | None) -> Boundary:
    wake_at = _instant(each.get("wake_at"))
    return Boundary(
        name=_a(str, each["name"]),
        kind=BoundaryKind(_a(str, each["kind"])),
        seq=_a(int, each["seq"]),
        value=_text(each["value"]) if "value" in each else None,
        fingerprint=_text_or_none(each.get("fingerprint")),
        detail=json.dumps(each["detail"]) if "detail" in each else None,
        wake_at=wake_at,
        absolute=bool(each.get("absolute")),
        # A run goes no further here than its document shows that it has been.
        due=wake_at is not None and (seen is None or wake_at <= seen),
        created_at=_instant(each.get("created_at")),
    )


def _delivery(each: Mapping[str, Any]) -> Delivered:
    return Delivered(
        kind=BoundaryKind(_a(str, each["kind"])),
        name=_a(str, each["name"]),
        state=DeliveryState(_a(str, each["state"])),
        inbox=_a(int, each["inbox"]),
        value=_text(each["value"]) if "value" in each else None,
        at=_instant(each.get("at")),
    )


def _last_instant(document: Mapping[str, Any]) -> datetime:
    made = [_instant(each.get("created_at")) for each in document["boundaries"]]
    came = [_instant(each.get("at")) for each in document["deliveries"]]
    return max(at for at in (_instant(document["run"]["created_at"]), *made, *came) if at)


def _a(kind: type[P], part: object) -> P:
    if type(part) is not kind:
        raise TypeError(f"a {type(part).__name__} in the place of a {kind.__name__}")
    return part


def _text_or_none(part: object) -> str | None:
    return None if part is None else _a(str, part)


def _known(at: object) -> datetime:
    instant = datetime.fromisoformat(_a(str, at))
    if instant.utcoffset() is None:
        raise ValueError("an instant without a zone")
    return instant


def _instant(at: object) -> datetime | None:
    return None if at is None else _known(at)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
