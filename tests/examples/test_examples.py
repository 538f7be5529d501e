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
