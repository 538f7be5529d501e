"""Each code block of the README and the docs is run, or at least read by what it is written for.

`python` blocks are programs: the name in backquotes just before a block is its file. `sh` blocks
are run by the shell, in the order of the page, in the same folder. `json` has to be JSON, and `sql`
is for reading. What a person types elsewhere (`text`, `console`) is not run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = {"python", "sh", "json", "text", "console", "sql"}
# Commands of a checkout, not of a program: they set up, test and lint what these tests are part of.
NOT_RUN = {"CONTRIBUTING.md"}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`([\w.]+\.py)`:?\s*$")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    name: str | None


def blocks(page: Path) -> list[Block]:
    content = page.read_text()
    found = []
    for match in BLOCK.finditer(content):
        named = NAMED.search(content[: match.start()].rstrip())
        found.append(Block(match[1], match[2], named[1] if named else None))
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_block_says_what_it_is(page: Path) -> None:
    assert {block.kind for block in blocks(page)} <= KINDS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_json_blocks_are_json(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in NOT_RUN], ids=name)
def test_programs_and_commands_run_as_written(page: Path, tmp_path: Path) -> None:
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
    }
    for number, block in enumerate(blocks(page)):
        if block.kind == "python":
            path = tmp_path / (block.name or f"block_{number}.py")
            path.write_text(block.text)
            command = [sys.executable, str(path)] if block.name is None else None
        elif block.kind == "sh":
            command = ["bash", "-euo", "pipefail", "-c", block.text]
        else:
            command = None
        if command is not None:
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def test_the_readme_shows_an_order_that_sleeps_for_a_week(tmp_path: Path) -> None:
    """What the README promises of its program: it went on after the carrier's word, and sleeps."""
    test_programs_and_commands_run_as_written(ROOT / "README.md", tmp_path)

    def told(*command: str) -> Any:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "workhorse"), "--json", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)

    (run,) = told("runs", "list")["runs"]
    assert (run["task"], run["state"], run["attempt"]) == ("orders.fulfil", "scheduled", 1)
    passed = [
        each["name"]
        for each in told("runs", "timeline", run["id"])["entries"]
        if each["what"] == "boundary"
    ]
    assert passed == ["charge", "welcome mail", "delivered", "a week of use"]


LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        target
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
