"""Each program of `examples/` is run as a user would, and prints what is expected of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "testing_a_month.py": [
        "['welcome, Ann', 'thank you, Ann'], result: very good, attempts: 1",
        "after the crash: running, ['welcome, Bob']",
        "['welcome, Bob', 'thank you, Bob'], result: no answer, attempts: 2",
        "as it is: at the open wait 'a month'",
        "changed: expected timer 'a month', came a new checkpoint 'voucher'",
    ],
    "web_producer.py": [
        "ordered: 202 sent again, the same run: True",
        "a forked process ordered: True",
        "a forked process ordered: True",
        "runs: 3",
    ],
    "on_lambda.py": [
        "produce: 202 True",
        "carrier: a saddle, key order-1",
        "handler: {'batchItemFailures': []}",
        "the run: scheduled",
        "maintain: {}",
    ],
    "batch_mails.py": [
        "provider: 3 mails in one request",
        "provider: 1 mails in one request",
        "sent to ann@example.org, attempt 1",
        "sent to bob@example.org, attempt 2",
        "not_retryable, attempt 1: 'cleo' is no address",
        "sent to dan@example.org, attempt 1",
    ],
    "in_your_transaction.py": [
        "3 activations",
        "order 1 confirmed at attempt 2",
        "refused: failed, not_retryable",
    ],
    "order.py": [
        "card: 1200 euros, key order-1",
        """waiting: human 'review', {"order":1,"euros":1200}""",
        "ada: delivered",
        "carrier's event: kept",
        "carrier's event: duplicate",
        "carrier: a saddle, key order-1",
        "mail: parcel of order-1 is on its way",
        "mail: day 1: all well?",
        "mail: day 7: all well?",
        "mail: day 30: all well?",
        "delivered to a neighbour",
        "6 activations, attempt 2",
    ],
    "payment.py": [
        "bank: order-7 charged",
        "bank: order-7 is charged already",
        "mail: paid: payment 1",
        "payment 1, attempt 3",
        'stored: charge = "payment 1"',
        "stored: receipt = null",
        "order 13: failed, not_retryable, attempt 1: the bank declined",
    ],
    "ledger.py": [
        "left: 70 euros, after 3 attempts",
        "bookings: [30]",
    ],
    "reminder.py": [
        "post: invoice of 1",
        "post: letter 1 of 1",
        "post: letter 2 of 1",
        "to the court: 4 activations, attempt 1",
        "post: invoice of 2",
        "post: letter 1 of 2",
        "bank: delivered",
        "bank: duplicate",
        "80 euros, paid before letter 2",
    ],
    "shipment.py": [
        "carrier: parcel 1 is booked, key parcel 1",
        "carrier: parcel 2 is booked, key parcel 2",
        "waiting: ['at the depot']",
        "door:  kept",
        "depot: delivered",
        "again: duplicate",
        "other: already_settled",
        "error: one key, two values",
        "parcel 1 went from Rome to Eve",
        "parcel 2 is still in Bonn",
        "late:  run_finished",
    ],
    "review.py": [
        """to decide: 'desk', {"euros":20,"question":"refund?"}""",
        "ada: delivered, bob: already_settled",
        "bank: 20 euros go back",
        "refunded",
        """to decide: 'boss', {"euros":900,"question":"refund?"}""",
        "refused",
        "  created  ",
        "  started  ",
        "  boundary desk ",
        "  boundary boss ",
        "  delivery desk timed_out",
        "  delivery boss value, by eve: no receipt",
        "  act decide , by eve: no receipt",
        "  ended  succeeded",
    ],
    "release.py": [
        "studio: Vertigo is ordered, key Vertigo",
        "studio: Ran is ordered, key Ran",
        "studio calls: delivered",
        "studio calls: already_settled",
        "/vertigo.mp4",
        "the studio has not answered",
        "['Vertigo out on Friday', 'Ran out on Friday', 'Solaris out on Friday']",
    ],
    "report.py": [
        "1400 euros on 2 pages, from 3 of 4 regions",
        "mailed to ada",
        "not mailed: not_retryable, DependencyFailed",
        "mailed to eve",
        "total: 1 runs",
        "region: 5 runs",
        "layout: 1 runs",
        "mail: 3 runs",
    ],
    "export.py": [
        "write page 1",
        "write page 2",
        "asked: it is running",
        "clean up: cancelled",
        'cancelled; progress {"page":2,"of":2}',
        "not begun: it is cancelled",
        "again: it is cancelled",
    ],
    "factors.py": [
        "999985999949 = 1000003 * 999983",
        "1000036000099 = 1000033 * 1000003",
        "97000291 = 1000003 * 97",
        "boundary: largest, stored",
        "attempt: lost, ProcessDied",
        "attempts: [1, 2, 1]",
    ],
    "versioning.py": [
        "1: packed",
        "old workers execute 0 runs",
        "the new run is ready, in attempt 1",
        "2: packed",
        "2: insured",
        "1: text message",
        "2: text message",
        "orders.send: dispatched, attempt 1, ['pack', 'text message']",
        "orders.dispatch: dispatched, attempt 1, ['pack', 'insure', 'text message']",
    ],
}


def test_every_example_has_its_output_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[name]
