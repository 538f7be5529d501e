"""What the guide says of crashes: behind each boundary of its examples, and each effect once."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from workhorse import Workhorse
from workhorse.testing import Kit

EXAMPLES = Path(__file__).parents[2] / "examples"
Outside = Callable[[ModuleType, Workhorse, str, str], object]
"""What the world does for a run when it waits under a name."""


def _nothing(_module: ModuleType, _app: Workhorse, _run: str, _wait: str) -> None:
    pass


def _pay(module: ModuleType, app: Workhorse, _run: str, wait: str) -> None:
    if wait == "paid before letter 2":
        app.complete_token(module.payments[2], {"euros": 80}, idempotency_key="k")


def _call_back(module: ModuleType, app: Workhorse, _run: str, _wait: str) -> None:
    app.complete_token(module.callbacks["Ran"], "/ran.mp4", idempotency_key="k")


def _signal(_module: ModuleType, app: Workhorse, run: str, wait: str) -> None:
    if wait in ("at the depot", "picked up"):
        app.send_signal(run, wait, "Rome", idempotency_key="k")


def _agree(_module: ModuleType, app: Workhorse, run: str, wait: str) -> None:
    app.complete_human_wait(run, wait, True, by="ada", idempotency_key="k")


def _passed(
    path: Path, task: str, payload: Any, outside: Outside, crash: str | None
) -> tuple[object, int, list[str]]:
    """Run an example's task to its end; return its result, all runs, and its boundaries."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app: Workhorse = getattr(module, "app", None) or module.after
    with Kit(app) as kit:  # that it crashed where it was to, the kit checks when it is closed
        run = app.registry.require(task).enqueue(payload)
        if crash is not None:
            kit.crash_after(crash)
        while not run.view().state.finished:
            if kit.run_until_idle() == 0:
                kit.advance_to_next()
            for wait in app.admin.list_waits(run.id):
                outside(module, app, run.id, wait.name)
        entries = app.admin.timeline(run.id)
        names = [str(entry.name) for entry in entries if entry.what == "boundary"]
        return run.result(timeout=0), len(app.admin.list_runs()), names


@pytest.mark.parametrize(
    ("example", "task", "payload", "outside"),
    [
        pytest.param("reminder", "invoices.collect", 1, _nothing, id="invoice-not-paid"),
        pytest.param("reminder", "invoices.collect", 2, _pay, id="invoice-paid"),
        pytest.param(
            "report", "reports.total", ["north", "nowhere", "east"], _nothing, id="report"
        ),
        pytest.param("release", "films.transcode", "Ran", _nothing, id="film-timed-out"),
        pytest.param("release", "films.transcode", "Ran", _call_back, id="film-called-back"),
        pytest.param("review", "refunds.decide", 5, _agree, id="refund"),
        pytest.param("shipment", "parcels.follow", "parcel", _signal, id="parcel"),
        pytest.param("versioning", "orders.dispatch", 3, _signal, id="order"),
    ],
)
def test_a_crash_behind_any_boundary_repeats_no_effect(
    example: str,
    task: str,
    payload: Any,
    outside: Outside,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = EXAMPLES / f"{example}.py"
    result, runs, boundaries = _passed(path, task, payload, outside, None)
    effects = capsys.readouterr().out

    assert boundaries
    for boundary in boundaries:
        crashed = _passed(path, task, payload, outside, boundary)
        assert crashed[:2] == (result, runs), boundary
        assert capsys.readouterr().out == effects, boundary
