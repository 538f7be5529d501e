"""Breaks the product one line at a time, and looks whether the tests of a case notice.

python -m tools.cases
python -m tools.cases --case 4 --case 12
python -m tools.cases --list

What docs/cases.md promises is held by tests, and a test holds something only if it fails without
it. So `cases.toml`, beside this module, names for each case lines of the product, what each of them
is changed to, and the tests that fail then. Here each change is made in a copy of the tree, and its
tests are run there, in processes of their own: many of them start workers, which import the product
anew. (`tools.mutation` changes functions in memory instead, a great many of them, for the store.)

The tests have to pass before. What was seen to fail is written into the table of docs/cases.md;
tests/test_case_table.py checks that the table is that of `cases.toml`, and that each line and each
test that it names is still there.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.support.postgres import PostgresServer

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "tools" / "cases.toml"
PAGE: Final = ROOT / "docs" / "cases.md"
COPIED: Final = (
    "benchmarks", "docs", "examples", "infra", "lanes", "tests", "tools", "workhorse",
    "Makefile", "README.md", "CHANGELOG.md", "pyproject.toml",
)  # fmt: skip
LONGEST_S: Final = 240
"""How long a test may take with a mutation, on a machine that is not busy otherwise."""
SEEN: Final = "yes"
_NAMED: Final = re.compile(r"(?:test_|_)cases?((?:_\d+(?:_and)?)+)(?:_|$)")


@dataclass(frozen=True, slots=True)
class Case:
    """A case, as the page heads it.

    Args:
        databases: Which databases its tests run on.
        handlers: Which kinds of handlers.
        wakeups: How wakeups travel in them: on, off, hostile.
        worst: The test of the combination that hurts most.
    """

    number: int
    databases: str
    handlers: str
    wakeups: str
    worst: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line of the product, changed.

    Args:
        case: The case whose promise the line keeps.
        promise: What it does.
        file: Where it stands.
        within: The function, class or constant that holds it, with dots; the whole file by default.
        old: The line, without its indentation; there is one such line in there.
        new: What it becomes.
        tests: The tests that fail then, each of them.
    """

    case: int
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    within: str = ""

    def __str__(self) -> str:
        return f"case {self.case}, {self.promise}: {self.file}: {self.old}  ->  {self.new}"

    def place(self, source: str) -> int:
        """Return the index of its line.

        Raises:
            LookupError: There is no such line, or more than one.
        """
        lines = source.splitlines()
        first, last = 0, len(lines)
        if self.within:
            first, last = _span(ast.parse(source), self.within)
        found = [n for n in range(first, last) if lines[n].strip() == self.old]
        if len(found) != 1:
            inside = f" in {self.within}" if self.within else ""
            raise LookupError(f"{self.file}{inside}: {len(found)} lines are `{self.old}`")
        return found[0]

    def applied(self, source: str) -> str:
        """Return the file's text with the change."""
        at, lines = self.place(source), source.splitlines(keepends=True)
        lines[at] = lines[at].replace(self.old, self.new)
        return "".join(lines)


def _span(tree: ast.Module, name: str) -> tuple[int, int]:
    found: ast.stmt | ast.Module = tree
    for part in name.split("."):
        body = getattr(found, "body", [])
        named = [node for node in body if part in _names_of(node)]
        if not named:
            raise LookupError(f"there is no {name}")
        found = named[0]
    lines = [getattr(found, "lineno", 1), getattr(found, "end_lineno", None) or 1]
    return lines[0] - 1, lines[1]


def _names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case _:
            return []


def read_table() -> tuple[list[Case], list[Mutation]]:
    """Return the cases and the mutations of `cases.toml`, in the order of the cases."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    cases = [Case(**each) for each in table["case"]]
    mutations = [Mutation(**{**each, "tests": tuple(each["tests"])}) for each in table["mutation"]]
    return (
        sorted(cases, key=lambda each: each.number),
        sorted(mutations, key=lambda each: each.case),  # those of a case stay in their order
    )


# -- tests by name -------------------------------------------------------------------------------


def cases_of(name: str) -> set[int]:
    """Return the cases that a test's or a module's name says, as `test_case_4_...`."""
    return {int(number) for found in _NAMED.findall(name) for number in re.findall(r"\d+", found)}


def tests_by_name() -> dict[int, dict[str, list[str]]]:
    """Return the tests that say a case, in their name or their module's, by module."""
    found: dict[int, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for name in functions_of(path.read_text(encoding="utf-8")):
            for number in cases_of(name) or cases_of(path.stem):
                found.setdefault(number, {}).setdefault(file, []).append(name)
    return found


def functions_of(source: str) -> list[str]:
    """Return the names of a module's tests."""
    return re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE)


# -- a copy of the tree --------------------------------------------------------------------------


class Copy:
    """A copy of the tree, in which lines are changed; its tests share one PostgreSQL."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="wh-cases-"))
        )
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        without = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.folder / name, ignore=without)
            else:
                shutil.copy2(source, self.folder / name)
        server = self._stack.enter_context(PostgresServer())
        server.databases.disconnect()
        name = server.databases.create()
        server.databases._execute(_renamed(name))
        server.databases.disconnect()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "WORKHORSE_TEST_DATABASE_URL": server.url(_NAME),
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, tests: Sequence[str], *, within_s: float = LONGEST_S) -> tuple[int, str]:
        """Run tests until one fails; return pytest's exit code and what it printed.

        Who takes too long has not failed: it may be the machine.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=line"]
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", "--durations=0", *tests],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # it is pytest's turn to end what it has started
            output, _ = process.communicate()
            return 2, f"{output}\nit takes longer than {within_s} s"
        return process.returncode, output

    def write(self, file: str, text: str) -> None:
        """Change a file; what was compiled of it goes, since its time and size may be the same."""
        path = self.folder / file
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


_NAME: Final = "cases_test"
"""The database that the tests are named; they make theirs beside it."""


def _renamed(name: str) -> Any:
    from psycopg import sql

    return sql.SQL("alter database {} rename to {}").format(
        sql.Identifier(name), sql.Identifier(_NAME)
    )


def attempt(copy: Copy, mutation: Mutation) -> str:
    """Run a mutation's tests with it; return what is wrong, nothing where each of them fails."""
    source = (copy.folder / mutation.file).read_text(encoding="utf-8")
    copy.write(mutation.file, mutation.applied(source))
    try:
        for test in mutation.tests:
            began = time.monotonic()
            code, output = copy.run([test])
            if code == 0:
                return f"{test} passes with it"
            if code != 1 or not re.search(r"\d+ failed", output):
                return f"{test} does not run with it:\n{output[-2_000:]}"
            said = re.findall(r"^(?:E  |/\S+:\d+:).*$", output, re.MULTILINE)
            why = said[-1][:160] if said else ""
            print(f"  fails ({time.monotonic() - began:.0f} s): {test}\n    {why}", flush=True)
    finally:
        copy.write(mutation.file, source)
    return ""


# -- the page ------------------------------------------------------------------------------------


_HEAD: Final = "| case | | databases | handlers | wakeups | the worst of it | tests by name |"
_MUTATED: Final = "| case | what is kept | the line, and what it becomes | fails | seen |"


def seen_on(page: str) -> set[str]:
    """Return the rows of the page's mutations that were seen to fail, without their last cell."""
    start = page.find(_MUTATED)
    rows = page[start:].split("\n\n", 1)[0].splitlines() if start >= 0 else []
    return {row.rsplit(" | ", 1)[0] for row in rows if row.endswith(f" | {SEEN} |")}


def row_of(mutation: Mutation) -> str:
    """Return a mutation's row of the page, without its last cell."""
    fails = "<br>".join(_linked(test) for test in mutation.tests)
    change = f"`{mutation.file}`: {_code(mutation.old)} → {_code(mutation.new)}"
    return f"| {mutation.case} | {mutation.promise} | {change} | {fails}"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("|", "\\|")


def _linked(test: str) -> str:
    file, _, name = test.partition("::")
    short = file.removeprefix("tests/").removesuffix(".py").replace("test_", "")
    return f"[{short}](../{file}): {name.partition('[')[0].removeprefix('test_')}"


def render(page: str, cases: Sequence[Case], mutations: Sequence[Mutation], seen: set[str]) -> str:
    """Return the page with its two tables made anew."""
    titles = dict(re.findall(r"^## (\d+)\. (.+)$", page, re.MULTILINE))
    page = _replaced(page, "| case | ", _cases(cases, titles))
    return _replaced(page, _MUTATED, _mutations(mutations, seen))


def _replaced(page: str, head: str, rows: Iterator[str]) -> str:
    start = page.index(f"\n{head}") + 1
    end = page.index("\n\n", start)
    return page[:start] + "\n".join(rows) + page[end:]


def _cases(cases: Sequence[Case], titles: Mapping[str, str]) -> Iterator[str]:
    by_name = tests_by_name()
    yield _HEAD
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in cases:
        title = titles[str(case.number)]
        anchor = re.sub(r"[^\w\- ]", "", f"{case.number}. {title}".lower()).replace(" ", "-")
        tests = ", ".join(
            f"[{file.removeprefix('tests/').removesuffix('.py').replace('test_', '')}](../{file})"
            for file in by_name.get(case.number, ())
        )
        yield (
            f"| [{case.number}](#{anchor}) | {title} | {case.databases} | {case.handlers} "
            f"| {case.wakeups} | {_linked(case.worst)} | {tests} |"
        )


def _mutations(mutations: Sequence[Mutation], seen: set[str]) -> Iterator[str]:
    yield _MUTATED
    yield "| --- | --- | --- | --- | --- |"
    for mutation in mutations:
        row = row_of(mutation)
        yield f"{row} | {SEEN if row in seen else 'no'} |"


# -- the command ---------------------------------------------------------------------------------


def main() -> int:
    """Break what the table says, and write down what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tools.cases")
    parser.add_argument("--case", type=int, action="append", help="only this one; may come again")
    parser.add_argument("--unseen", action="store_true", help="only what was not seen to fail")
    parser.add_argument("--list", action="store_true", help="only list the mutations")
    parser.add_argument("--render", action="store_true", help="only write the page's tables anew")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without them")
    given = parser.parse_args()
    _, chosen = read_table()
    if given.case is not None:
        chosen = [each for each in chosen if each.case in given.case]
    if given.unseen:
        seen = seen_on(PAGE.read_text(encoding="utf-8"))
        chosen = [each for each in chosen if row_of(each) not in seen]
    if given.list:
        print(*chosen, f"{len(chosen)} mutations", sep="\n")
        return 0
    if given.render:
        write_down({})
        return 0
    failures = []
    with Copy() as copy:
        if not given.trust:
            tests = list(dict.fromkeys(test for each in chosen for test in each.tests))
            code, output = copy.run(tests, within_s=3_600)
            if code:
                raise SystemExit(f"without a mutation:\n{output[-4_000:]}")
            print(f"{len(tests)} tests pass without a mutation", flush=True)
        for mutation in chosen:
            print(mutation, flush=True)
            wrong = attempt(copy, mutation)
            write_down({row_of(mutation): not wrong})
            if wrong:
                failures.append(f"{mutation}\n  {wrong}")
                print(f"  LIVES: {wrong}", flush=True)
    print("", *failures, sep="\n")
    print(f"{len(chosen) - len(failures)} of {len(chosen)} mutations are noticed")
    return 1 if failures else 0


def write_down(noticed: Mapping[str, bool]) -> None:
    """Write the page's tables anew; who runs other cases meanwhile has written into it, too."""
    page = PAGE.read_text(encoding="utf-8")
    seen = seen_on(page).difference(noticed) | {row for row, fails in noticed.items() if fails}
    PAGE.write_text(render(page, *read_table(), seen), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
