"""The page about the doctor says of each code what the code itself says."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_code_blocks import ROOT
from workhorse.domain.findings import Code

PAGE = (ROOT / "docs" / "doctor.md").read_text()
ROWS = {
    code: (severity, meaning)
    for code, severity, meaning in re.findall(
        r"^\| `(\w+)` \| (ok|note|warning|error) \| ([^|]+) \| [^|]*\|$", PAGE, re.MULTILINE
    )
}


def test_each_code_stands_there_in_the_catalogues_order() -> None:
    assert list(ROWS) == [code.value for code in Code]


@pytest.mark.parametrize("code", Code)
def test_it_means_what_the_catalogue_says(code: Code) -> None:
    severity, meaning = ROWS[code.value]
    assert meaning == code.meaning
    assert (severity == "ok") is code.value.endswith("_ok")


def test_each_severity_is_the_one_that_is_found() -> None:
    """The tests of the doctor plant each fault and each note."""
    from tests.cli.test_doctor import FAULTS, NOTES

    notes = {code.value for _plant, code in NOTES.values()}
    assert {code for code, (severity, _) in ROWS.items() if severity == "note"} == notes
    bad = {code.value for _plant, code in FAULTS.values()}
    assert {code for code, (severity, _) in ROWS.items() if severity in ("warning", "error")} == bad
