"""The producer of `examples/on_lambda.py`: an HTTP request becomes a run."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.functions.conftest import ROOT
from workhorse import Workhorse
from workhorse.domain.runs import RunState


@pytest.fixture
def produce(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "examples")
    on_lambda = import_module("on_lambda")
    app: Any = on_lambda.app
    here = Workhorse(database_url=database_url, lane="memory", registry=app.registry)
    with app.replaced_by(here):
        yield on_lambda.produce
    here.close()


def request(body: str, **headers: str) -> dict[str, Any]:
    return {"headers": headers, "body": body}


ORDER = json.dumps({"number": 1, "item": "saddle"})


def test_a_request_is_accepted_once(produce: Any) -> None:
    """The same request, whatever its encoding, is the same run; the answer names it."""
    first = produce(request(ORDER), None)
    encoded = base64.b64encode(ORDER.encode()).decode()
    again = produce({"headers": None, "body": encoded, "isBase64Encoded": True}, None)
    assert first["statusCode"] == again["statusCode"] == 202
    run_id = json.loads(first["body"])["run_id"]
    assert json.loads(again["body"])["run_id"] == run_id

    assert import_module("on_lambda").app.run(run_id).view().state is RunState.READY


def test_a_key_belongs_to_one_order(produce: Any) -> None:
    keyed = {"Idempotency-Key": "k-1"}
    assert produce(request(ORDER, **keyed), None)["statusCode"] == 202
    other = json.dumps({"number": 2, "item": "bell"})
    assert produce(request(other, **keyed), None)["statusCode"] == 409


@pytest.mark.parametrize(
    "body",
    ["", "no JSON", "[]", "{}", '{"number": "one", "item": "saddle"}', '{"number": 1}', "null"],
)
def test_what_is_no_order_is_refused(produce: Any, body: str) -> None:
    assert produce(request(body), None)["statusCode"] == 400
