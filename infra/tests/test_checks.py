"""What other programs say about the stacks, and that the committed templates are theirs."""

from __future__ import annotations

import pytest

from infra.acknowledgements import ACKNOWLEDGEMENTS
from infra.plain import FILES, FOLDER, text_of
from infra.tests.conftest import Synthesized

_LARGEST_BYTES = 51_200
"""What CloudFormation takes without a bucket in between."""


def test_cdk_nag_finds_nothing_that_has_not_been_looked_at(synthesized: Synthesized) -> None:
    assert synthesized.found("violations") == set()
    assert synthesized.failure is None


def test_each_acknowledgement_answers_one_finding_at_one_resource(
    synthesized: Synthesized,
) -> None:
    said = [(one.path, one.rule) for one in ACKNOWLEDGEMENTS]
    assert len(set(said)) == len(said)
    assert set(said) == synthesized.found("suppressedViolations")
    assert all(len(one.reason) > 20 for one in ACKNOWLEDGEMENTS)


@pytest.mark.parametrize("stack", list(FILES))
def test_committed_templates_are_current(synthesized: Synthesized, stack: str) -> None:
    written = (FOLDER / FILES[stack]).read_text()
    assert written == text_of(synthesized.raw[stack]), "run `make templates`"
    assert len(written.encode()) < _LARGEST_BYTES
