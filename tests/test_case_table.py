"""The cases are tests by name, and what makes them fail is still there (docs/cases.md).

That they do fail with it, `python -m tools.cases` shows; it takes half an hour.
"""

from __future__ import annotations

import pytest

from tools import cases
from tools.cases import ROOT

CASES, MUTATIONS = cases.read_table()
NUMBERS = list(range(1, 21))


def test_each_case_is_tests_by_name_and_has_a_mutation() -> None:
    by_name = cases.tests_by_name()

    assert [case.number for case in CASES] == NUMBERS
    assert sorted({mutation.case for mutation in MUTATIONS}) == NUMBERS
    assert sorted(by_name) == NUMBERS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda it: f"{it.case} {it.promise}")
def test_a_mutation_still_finds_its_line_and_its_tests(mutation: cases.Mutation) -> None:
    source = (ROOT / mutation.file).read_text(encoding="utf-8")

    changed = mutation.applied(source)

    assert changed != source
    compile(changed, mutation.file, "exec")
    for test in mutation.tests:
        assert _is_there(test), test


def test_the_worst_of_each_case_is_there() -> None:
    assert [case.worst for case in CASES if not _is_there(case.worst)] == []


def test_the_page_shows_the_table_and_that_each_mutation_was_seen_to_fail() -> None:
    """Else: `python -m tools.cases --case N`, or with `--render` where only words have changed."""
    page = cases.PAGE.read_text(encoding="utf-8")
    rows = {cases.row_of(mutation) for mutation in MUTATIONS}

    assert rows - cases.seen_on(page) == set()
    # Which modules there are beside them changes with each new test: it need not be the latest.
    shown, made = (_without_last(text) for text in (page, _rendered(page)))
    assert shown == made


def test_a_line_is_found_where_it_is_said_to_be() -> None:
    source = (
        "def a():\n    same()\n\nclass B:\n    def c(self):\n        same()\n\nD = (\n    1,\n)\n"
    )

    def place(old: str, within: str = "") -> int:
        mutation = cases.Mutation(1, "", "a file", old, "other()", ("a test",), within)
        return mutation.place(source)

    assert [place("same()", "a"), place("same()", "B.c"), place("1,", "D")] == [1, 5, 8]
    for old, within in (("same()", ""), ("none()", ""), ("same()", "nowhere")):
        with pytest.raises(LookupError):
            place(old, within)


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.exists() and name.partition("[")[0] in cases.functions_of(
        path.read_text(encoding="utf-8")
    )


def _rendered(page: str) -> str:
    return cases.render(page, CASES, MUTATIONS, cases.seen_on(page))


def _without_last(page: str) -> list[str]:
    return [line.rsplit(" | ", 1)[0] for line in page.splitlines() if line.startswith("| [")]
