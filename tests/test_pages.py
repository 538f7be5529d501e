"""The project's own pages stay true: links lead somewhere, and each case has its tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "infra/*.md", "localstack/*.md")
    for path in ROOT.glob(pattern)
)
CASES = (ROOT / "docs" / "cases.md").read_text()


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def _links_to_headings(page: Path) -> Iterator[tuple[str, str]]:
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        path, _, anchor = link.partition("#")
        if anchor and not re.match(r"[a-z]+:", link):
            yield path, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_to_headings(page: Path) -> None:
    for path, anchor in _links_to_headings(page):
        target = (page.parent / path).resolve() if path else page
        assert anchor in _anchors(target), f"{page.name} links to {path}#{anchor}"


def _rows() -> dict[int, str]:
    return {
        int(number): tests
        for number, tests in re.findall(r"^\| \[(\d+)\]\(#.*?\| .*? \| (.*) \|$", CASES, re.M)
    }


def test_every_case_has_tests_or_says_what_it_waits_for() -> None:
    rows = _rows()

    assert list(rows) == list(range(1, 21))
    for number, tests in rows.items():
        assert "../tests/" in tests or "later" in tests, f"case {number} has neither"


@pytest.mark.parametrize("number", range(1, 21))
def test_the_tests_of_a_case_name_it(number: int) -> None:
    named = re.compile(rf"\bcases? (\d+ and )?{number}\b|_case_{number}(_|\b)", re.IGNORECASE)
    for path in re.findall(r"\(\.\./(tests/[^)]+)\)", _rows()[number]):
        assert named.search((ROOT / path).read_text() + path), f"{path} says nothing of it"


def test_decisions_are_numbered_without_gaps_and_all_in_their_index() -> None:
    folder = ROOT / "docs" / "adr"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))

    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    index = (folder / "README.md").read_text()
    for name in pages:
        title = (folder / name).read_text().splitlines()[0]
        assert title.startswith(f"# {int(name[:4])}. ")
        assert f"({name})" in index, f"{name} is not in the index"
