"""What a page of the guide shows of an example is what stands in the example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_code_blocks import PAGES, ROOT, Block, blocks, name

EXAMPLES = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
SHOWN = [
    pytest.param(block, id=f"{name(page)}:{block.name}")
    for page in PAGES
    for block in blocks(page)
    if block.kind == "python" and block.name in EXAMPLES
]


@pytest.mark.parametrize("block", SHOWN)
def test_an_excerpt_stands_in_its_example(block: Block) -> None:
    assert block.name is not None
    assert block.text in EXAMPLES[block.name]


@pytest.mark.parametrize("page", [page for page in PAGES if "(../examples/" in page.read_text()])
def test_an_example_that_is_linked_is_run_by_the_tests(page: Path) -> None:
    run = (ROOT / "tests" / "examples" / "test_examples.py").read_text()
    for example in EXAMPLES:
        assert f"(../examples/{example})" not in page.read_text() or f'"{example}"' in run
