"""Changes the store one small thing at a time, and looks whether a test notices.

python -m tools.mutation leasing sweeping:_expired domain.transitions
python -m tools.mutation --sample 60 settling claiming
python -m tools.mutation --list leasing

A name is a module of workhorse/store, or any under workhorse; behind a colon stand functions.
Functions are changed in memory, in one process that has collected the tests once: no file is
written, and a mutant costs no more than the tests that it takes to find it. The tools that there
are change operators and constants of Python alone; here conditions of statements are changed too:
each part of a `where`, an `and_` or an `or_` is left out once, as are locks, columns of an update,
and arms of a `case`. What only runs at import (constants) is left alone, as are texts and names.

The tests that fit a module run on SQLite first, then on PostgreSQL; one that has just found a
mutant is asked first for the next. The report is a table in Markdown; see docs/mutation-report.md.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

ROOT: Final = Path(__file__).parent.parent
LONGEST_S: Final = 240
"""How long a test may take with a mutant; one that takes longer has found it."""

_COMPARED: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_LEFT_OUT: Final = frozenset({"with_for_update", "on_conflict_do_nothing", "where"})
"""Methods that can be left out of a chain."""
_JOINED: Final = frozenset({"and_", "or_", "where"})
"""Calls whose arguments can be left out one by one."""
_TURNED: Final = {
    "and_": "or_", "or_": "and_", "is_": "is_not", "is_not": "is_", "in_": "not_in",
    "not_in": "in_",
}  # fmt: skip
_PASSED_BY: Final = frozenset({"prefix_with", "cte", "label", "render_derived", "bindparam"})
"""Calls whose arguments say nothing that decides."""

_EXPLORED: Final = "exploration/test_exploration::test_what_is_explored"
"""All interleavings of few steps; those of many take too long for each mutant."""

FITTING: Final[dict[str, tuple[str, ...]]] = {
    "leasing": (
        "store/test_stale_tokens", "store/test_renewals", _EXPLORED, "store/test_settling",
        "store/test_boundaries", "durable/test_races", "durable/test_stale_leases",
    ),
    "sweeping": (
        "store/test_sweeping", "store/test_transitions", "store/test_time",
        "store/test_stale_tokens", _EXPLORED, "store/test_claim_races", "durable/test_races",
    ),
    "settling": (
        "store/test_settling", "store/test_transitions", "store/test_stale_tokens",
        _EXPLORED,
    ),
    "ending": (
        "store/test_settling", "store/test_transitions", "store/test_stale_tokens",
        "store/test_cancelling", "store/test_sessions", "store/test_freeing",
    ),
    "suspending": (
        "store/test_suspending", "store/test_transitions", "store/test_stale_tokens",
        "store/test_tokens", _EXPLORED,
    ),
    "claiming": (
        "store/test_claims_by_id", "store/test_claims_by_scan", "store/test_transitions",
        "store/test_sessions", "store/test_claim_races",
    ),
    "picking": (
        "store/test_claims_by_id", "store/test_claims_by_scan", "store/test_sessions",
        "store/test_claim_races",
    ),
    "turns": ("store/test_sessions", "store/test_claims_by_scan"),
    "delivering": ("store/test_delivering", "store/test_suspending", "store/test_tokens"),
    "putting": ("store/test_delivering", "store/test_suspending", "store/test_freeing"),
    "operating": ("store/test_operating", "store/test_cancelling", "store/test_transitions"),
    "boundaries": ("store/test_boundaries", "store/test_stale_tokens", "store/test_suspending"),
    "freeing": ("store/test_freeing", "store/test_tokens"),
    "tokens": ("store/test_tokens", "store/test_suspending"),
    "domain.transitions": ("domain/test_transitions", "store/test_transitions"),
    "domain.retry": ("domain/test_retry",),
}  # fmt: skip


# -- mutants -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Mutant:
    """One change of one function."""

    module: str
    function: str
    line: int
    was: str
    becomes: str
    code: CodeType = field(repr=False)
    found_by: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.function}:{self.line}: {self.was}  ->  {self.becomes}"


def mutants_of(module: ModuleType, functions: Sequence[str] = ()) -> Iterator[Mutant]:
    """Return all mutants of a module's functions and methods."""
    path = inspect.getsourcefile(module) or ""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    short = module.__name__.removeprefix("workhorse.").removeprefix("store.")
    for name, node in _functions(tree):
        if functions and name not in functions:
            continue
        _forget_annotations(node)
        places = list(_places(node))
        for place in places:
            for change, less in _changes(place):
                was = ast.unparse(place)
                with_it = copy.deepcopy(tree)
                target = _same(with_it, tree, place)
                new = change(target)
                _replace(with_it, target, new)
                ast.fix_missing_locations(with_it)
                code = _code_of(compile(with_it, path, "exec"), name)
                becomes = f"without {less}" if less else ast.unparse(new)
                yield Mutant(short, name, place.lineno, _short(was), _short(becomes), code)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _forget_annotations(function: ast.FunctionDef) -> None:
    function.returns = None
    arguments = function.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        each.annotation = None


def _places(node: ast.AST) -> Iterator[Any]:
    """Return the nodes within a function, without those that decide nothing."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            # Defaults are made at import.
            if isinstance(child, ast.JoinedStr | ast.Raise | ast.arguments):
                continue
            if hasattr(child, "lineno"):
                yield child
            if isinstance(child, ast.Call) and _called(child) in _PASSED_BY:
                if isinstance(child.func, ast.Attribute):
                    yield child.func.value
                    yield from _places(child.func.value)
                continue
            yield from _places(child)


Change = tuple[Callable[[Any], Any], str]
"""What makes another of a node, and what is left out by that, where something is."""


def _changes(node: Any) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]):
            for compared in _COMPARED[type(op)]:
                yield partial(_with, ops=[compared()]), ""
        case ast.BoolOp():
            for n, value in enumerate(node.values):
                yield _dropping("values", n), ast.unparse(value)
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            yield lambda it: it.operand, ""
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            other: ast.operator = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield partial(_with, op=other), ""
        case ast.Constant(value=bool()):
            yield lambda it: ast.Constant(not it.value), ""
        case ast.Constant(value=int()):
            yield lambda it: ast.Constant(it.value + 1), ""
        case ast.If() | ast.IfExp():
            yield lambda it: _with(it, test=ast.UnaryOp(ast.Not(), it.test)), ""
        case ast.Expr(value=ast.Call()):
            yield lambda _it: ast.Pass(), "it"
        case ast.Call():
            yield from _changes_of_call(node)


def _changes_of_call(node: ast.Call) -> Iterator[Change]:
    called = _called(node)
    if called in _JOINED and len(node.args) > 1:
        for n, arg in enumerate(node.args):
            yield _dropping("args", n), ast.unparse(arg)
    one = called != "where" or len(node.args) == 1
    if called in _LEFT_OUT and isinstance(node.func, ast.Attribute) and one:
        yield lambda it: it.func.value, f".{called}(...)"
    if called in _TURNED:
        yield lambda it: _with(it, func=_renamed(it.func, _TURNED[_called(it)])), ""
    if called == "not_":
        yield lambda it: it.args[0], ""
    if called == "values" and len(node.keywords) > 1:
        for n, keyword in enumerate(node.keywords):
            yield _dropping("keywords", n), ast.unparse(keyword)
    if called == "case":
        # Where there is one arm alone, what stands behind `else_` is left.
        for n, arg in enumerate(node.args):
            if len(node.args) > 1:
                yield _dropping("args", n), ast.unparse(arg)
            elif node.keywords:
                yield lambda it: it.keywords[0].value, ast.unparse(arg)
    if called == "coalesce" and len(node.args) > 1:
        yield lambda it: it.args[1], ""
        yield lambda it: it.args[0], ""
    if called == "literal_column" and isinstance(node.args[0], ast.Constant):
        text = str(node.args[0].value)
        if text.isdigit():
            yield lambda it: _with(it, args=[ast.Constant(str(int(it.args[0].value) + 1))]), ""
        elif text.startswith("'"):
            yield lambda it: _with(it, args=[ast.Constant("'another'")]), ""


def _dropping(name: str, n: int) -> Callable[[Any], Any]:
    def drop(it: Any) -> Any:
        parts = getattr(it, name)
        left = [*parts[:n], *parts[n + 1 :]]
        if isinstance(it, ast.BoolOp) and len(left) == 1:
            return left[0]
        return _with(it, **{name: left})

    return drop


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _renamed(func: Any, name: str) -> Any:
    return _with(func, **({"attr": name} if isinstance(func, ast.Attribute) else {"id": name}))


def _with(node: Any, **parts: Any) -> Any:
    made = copy.copy(node)
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def _same(copied: ast.AST, tree: ast.AST, place: ast.AST) -> ast.AST:
    for mine, theirs in zip(ast.walk(copied), ast.walk(tree), strict=True):
        if theirs is place:
            return mine
    raise AssertionError("it is not in the tree")


def _replace(tree: ast.AST, target: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, new)
                return
            if isinstance(value, list) and any(each is target for each in value):
                setattr(parent, name, [new if each is target else each for each in value])
                return


def _code_of(code: CodeType, name: str) -> CodeType:
    for part in name.split("."):
        inner = [each for each in code.co_consts if isinstance(each, CodeType)]
        code = next(each for each in inner if each.co_name == part)
    return code


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:55]} ... {line[-30:]}"


# -- a run ---------------------------------------------------------------------------------------


class _TooLongError(BaseException):
    """A test goes on for too long with a mutant."""


class Mutating:
    """A plugin of pytest: instead of running the tests once, it runs them with each mutant."""

    def __init__(
        self, mutants: Sequence[Mutant], bound_s: float, databases: Sequence[str], trusts: bool
    ) -> None:
        self._mutants = mutants
        self._ends = time.monotonic() + bound_s
        self._databases = databases
        self._trusts = trusts
        self._failed = ""
        self.skipped = 0
        # Behind the back of pytest, which keeps what tests print.
        self._out = os.fdopen(os.dup(1), "w", buffering=1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests with each mutant until one of them fails."""
        by_module: dict[str, list[pytest.Item]] = {}
        for module in dict.fromkeys(mutant.module for mutant in self._mutants):
            files = FITTING[module]
            fitting = [item for item in session.items if _name_of(item).startswith(files)]
            fitting = [item for item in fitting if _database_of(item) in self._databases]
            by_module[module] = sorted(fitting, key=self._place)
            if self._trusts:
                continue
            found = self._run(by_module[module])
            if found:
                raise pytest.UsageError(f"without a mutant {found} fails: {self._failed}")
            print(f"{module}: {len(by_module[module])} tests pass", file=self._out)
        for mutant in self._mutants:
            if time.monotonic() > self._ends:
                self.skipped += 1
                continue
            items = by_module[mutant.module]
            function = _function(mutant)
            right = function.__code__
            function.__code__ = mutant.code
            _forget_statements()
            try:
                mutant.found_by = self._run(items)
            finally:
                function.__code__ = right
                _forget_statements()
            if mutant.found_by:
                items.sort(key=partial(_is_not, mutant.found_by))
            print(f"{'found' if mutant.found_by else 'LIVES'} {mutant}", file=self._out)
        return True

    def _place(self, item: pytest.Item) -> int:
        return self._databases.index(_database_of(item))

    def _run(self, items: Sequence[pytest.Item]) -> str:
        for item in items:
            if self._fails(item):
                return item.nodeid
        return ""

    def _fails(self, item: Any) -> bool:
        item._initrequest()
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(LONGEST_S)
        try:
            # What belongs to the session stays.
            reports = runtestprotocol(item, log=False, nextitem=item.session)
        except _TooLongError:
            self._failed = "it takes too long"
            return True
        finally:
            signal.alarm(0)
        failed = [report for report in reports if report.failed]
        if failed:
            self._failed = str(failed[0].longrepr)[-1_000:]
        return bool(failed)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise _TooLongError


def _name_of(item: pytest.Item) -> str:
    path, _, name = item.nodeid.partition("::")
    return f"{path.removeprefix('tests/').removesuffix('.py')}::{name}"


def _is_not(name: str, item: pytest.Item) -> bool:
    return item.nodeid != name


def _database_of(item: pytest.Item) -> str:
    names: Sequence[str] = getattr(item, "fixturenames", ())
    own = any(name in names for name in ("own_postgres", "postgresql_url", "postgresql_store"))
    return "postgresql" if own or "postgresql" in item.nodeid else "sqlite"


def _function(mutant: Mutant) -> FunctionType:
    found: Any = importlib.import_module(_full(mutant.module))
    for part in mutant.function.split("."):
        found = getattr(found, part)
    function: Any = inspect.unwrap(getattr(found, "fget", found))
    return function  # type: ignore[no-any-return]


def _forget_statements() -> None:
    from workhorse.store.base import database

    database._statements.cache_clear()


def _full(name: str) -> str:
    if "." in name:
        return f"workhorse.{name}"
    (path,) = (ROOT / "workhorse" / "store").glob(f"*/{name}.py")
    return f"workhorse.store.{path.parent.name}.{name}"


# -- the command ---------------------------------------------------------------------------------


def report(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Return a table: what was changed, and which test noticed."""
    tried = [mutant for mutant in mutants if mutant.found_by != "not tried"]
    yield "| module | mutants | found | live |"
    yield "| --- | --- | --- | --- |"
    for module in dict.fromkeys(mutant.module for mutant in tried):
        mine = [mutant for mutant in tried if mutant.module == module]
        found = sum(bool(mutant.found_by) for mutant in mine)
        yield f"| {module} | {len(mine)} | {found} | {len(mine) - found} |"
    yield ""
    yield "| where | was | becomes | found by |"
    yield "| --- | --- | --- | --- |"
    for mutant in tried:
        by = mutant.found_by.removeprefix("tests/").replace("|", "\\|")
        was, becomes = (text.replace("|", "\\|") for text in (mutant.was, mutant.becomes))
        where = f"{mutant.module}.{mutant.function}:{mutant.line}"
        yield f"| {where} | `{was}` | `{becomes}` | {f'`{by}`' if by else '**nothing**'} |"


def main() -> int:
    """Run mutants, or list them."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("names", nargs="+", help="module, or module:function,function")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--sample", type=int, help="that many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="begin no mutant after that")
    parser.add_argument("--no-postgresql", action="store_true", help="tests on SQLite alone")
    parser.add_argument("--only-postgresql", action="store_true", help="tests on PostgreSQL alone")
    parser.add_argument(
        "--trust", action="store_true", help="do not run the tests without a mutant"
    )
    parser.add_argument("--out", type=Path, help="where the report goes, beside the output")
    given = parser.parse_args()
    mutants: list[Mutant] = []
    for name in given.names:
        module, _, functions = name.partition(":")
        chosen = functions.split(",") if functions else ()
        mutants += mutants_of(importlib.import_module(_full(module)), chosen)
    if given.sample is not None and given.sample < len(mutants):
        kept = random.Random(given.seed).sample(range(len(mutants)), given.sample)  # noqa: S311
        mutants = [mutants[n] for n in sorted(kept)]
    if given.list:
        print(*mutants, f"{len(mutants)} mutants", sep="\n")
        return 0
    files = dict.fromkeys(f.partition("::")[0] for m in mutants for f in FITTING[m.module])
    databases = ["sqlite"] * (not given.only_postgresql)  # the quicker one first
    databases += ["postgresql"] * (not given.no_postgresql)
    mutating = Mutating(mutants, given.minutes * 60, databases, given.trust)
    options = ["-q", "-p", "no:cacheprovider", "-n", "0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # it is imported already
    answer = pytest.main([*options, *(f"tests/{name}.py" for name in files)], plugins=[mutating])
    if mutating.skipped:
        for mutant in mutants[-mutating.skipped :]:
            mutant.found_by = "not tried"
    if answer not in (0, 5):
        return int(answer)
    lines = list(report(mutants))
    print("", *lines, sep="\n")
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
