"""Where emulators do not do as SQS does: the one table, for the tests and for the docs.

Each row names a test of tests/lanes/test_emulator_fidelity.py, whose docstring says what SQS does.
The test is expected to fail with that emulator; should it pass, the run fails, and the row goes.
Nothing in the product works around any of them.

`python -m tests.support.emulator_differences` writes the table into docs/local-development.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

PAGE: Final = Path(__file__).parents[2] / "docs" / "local-development.md"
CHECKS: Final = Path(__file__).parents[1] / "lanes" / "test_emulator_fidelity.py"
_PLACE: Final = re.compile(
    r"(?<=<!-- differences: begin -->\n).*?(?=<!-- differences: end -->)", re.S
)


_NAMES: Final = {
    "localstack": "LocalStack",
    "ministack": "MiniStack",
    "fauxqs": "fauxqs",
    "moto": "moto",
}


class Difference(NamedTuple):
    """What one emulator does instead of what SQS does."""

    emulator: str
    check: str
    """The test's name, without `test_`, and with the parameter where only that one differs."""
    instead: str


DIFFERENCES: Final = (
    Difference("localstack", "a_delay_beyond_15_min_fails_alone", "the message is taken"),
    Difference("localstack", "a_visibility_beyond_12_h_is_refused", "it is accepted"),
    Difference("ministack", "a_delay_beyond_15_min_fails_alone", "the message is taken"),
    Difference("ministack", "a_visibility_beyond_12_h_is_refused", "it is accepted"),
    Difference("ministack", "a_wait_beyond_20_s_is_refused", "it is accepted"),
    Difference("ministack", "deleting_twice", "the second fails with ReceiptHandleIsInvalid"),
    Difference("fauxqs", "a_delay_beyond_15_min_fails_alone", "the message is taken"),
    Difference("fauxqs", "a_made_up_handle_fails_alone_when_deleted", "it succeeds"),
    Difference("fauxqs", "a_dead_letter_says_where_it_comes_from", "the attribute is missing"),
    Difference("fauxqs", "codes_and_their_namespace[parameter]", "all codes have it"),
    Difference("moto", "a_dead_letter_says_where_it_comes_from", "the attribute is missing"),
    Difference("moto", "a_body_with_characters_that_are_none_is_refused", "it is taken"),
)


def expect(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that are expected to fail with the emulator that they run against."""
    for item in items:
        if not isinstance(item, pytest.Function) or item.path != CHECKS:
            continue
        emulator = item.callspec.params["endpoint"]
        others = [word for word in item.callspec.id.split("-") if word != emulator]
        name = item.originalname.removeprefix("test_")
        for difference in DIFFERENCES:
            wanted, _, parameter = difference.check.removesuffix("]").partition("[")
            fits = not parameter or parameter in others
            if difference.emulator == emulator and wanted == name and fits:
                failures = (AssertionError, pytest.fail.Exception)
                reason = f"{emulator}: {difference.instead}"
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason, raises=failures))


def table() -> str:
    """Return the table as the page shows it, a row for each check that some emulator fails."""
    says = dict(
        re.findall(r'^def test_(\w+)\(.*?\n    """(.*?)"""', CHECKS.read_text(), re.M | re.S)
    )
    rows: dict[str, list[str]] = {}
    for emulator, check, instead in DIFFERENCES:
        rows.setdefault(check, []).append(f"{_NAMES[emulator]}: {instead}")
    lines = [
        "| what SQS does | what emulators do instead | the check, `test_...` |",
        "| --- " * 3 + "|",
    ]
    for check, found in rows.items():
        line = " ".join(says[check.partition("[")[0]].split()).removesuffix(".")
        lines.append(f"| {line} | {'; '.join(found)} | `{check}` |")
    return "\n".join(lines) + "\n"


def on_page() -> str:
    """Return the table that the page holds."""
    found = _PLACE.search(PAGE.read_text())
    assert found, f"{PAGE.name} has no place for the table"
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(_PLACE.sub(lambda _: table(), PAGE.read_text()))
