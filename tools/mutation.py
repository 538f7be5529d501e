"""Changes the store one small thing at a time, and looks whether a test notices.

python -m tools.mutation leasing sweeping:_expired transitions
python -m tools.mutation --sample 60 settling claiming
python -m tools.mutation --list leasing
python -m tools.mutation --out found.jsonl store                  # everything: an hour on two cores
python -m tools.mutation --again found.jsonl --tests client --learned more.json store

A name is a module of workhorse/store or workhorse/domain, or `store` for all of the store; behind a
colon stand functions. Functions are changed in memory, in one process that has collected the tests
once: no file is written, and a mutant costs no more than the tests that it takes to find it. The
tools that there are change operators and constants of Python alone; here conditions of statements
are changed too: each part of a `where`, an `and_` or an `or_` is left out once, as are locks,
columns of an update, and arms of a `case`. What only runs at import (constants) is left alone, as
are texts and names.

Which tests to ask is measured and not chosen: first all tests run once, and each says which blocks
of code it came through and how long it took (`--learned FILE` keeps that). A mutant is then shown
to those tests alone that come through the place that it changes: the one that found the last mutant
of its function first, then the quickest, up to `--enough` seconds. The report is a table in
Markdown; see docs/mutation-report.md.

A mutant may leave something behind in the process, and then tests fail whatever they are shown. So
what tests share is made before the first mutant, a test that has found a mutant has to pass without
it, and where it does not, or threads are left, a new process goes on behind what is in `--out`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib
import inspect
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

ROOT: Final = Path(__file__).parent.parent
PLACES: Final = ("store", "domain")
"""The parts of workhorse whose modules are known by their names alone."""
TESTS: Final = ("domain", "store", "exploration/test_exploration.py", "durable")
"""Tests that run in one process, so that they see what is changed in it."""
LENGTHY: Final = (
    "durable/test_model.py", "durable/test_fan_in.py", "durable/test_cases_7_and_8.py",
    "durable/test_cases_9_and_10.py", "store/test_plans.py", "store/test_waiting_plans.py",
    "store/test_measuring_plans.py", "store/test_storm.py", "store/test_waiting_storm.py",
    "store/test_migrating.py", "store/test_connections.py", "store/test_rows_touched.py",
    "exploration/test_exploration.py::test_no_interleaving",
)  # fmt: skip
"""Those of them that take too long for each mutant; asked where `--tests` names them."""
SLOWER: Final = 60
"""A test has found a mutant if it takes so many times as long with it, and 15 s."""
ALARMS: Final = 5
"""So often a test is ended that takes too long, and then the process."""
STUCK_S: Final = 10
"""So many seconds after the first alarm a test that has not come back is given up."""
THREADS: Final = 40
"""So many threads that tests have left make a process that nothing is said by any more."""

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

_DATABASES: Final = ("sqlite", "postgresql")
_TOUCH: Final = "__touch__"
_KEPT: Final = ("took", "through", "built")
"""What the file of what was learned holds."""
_UNASKED: Final = ("debug", "info", "warning", "exception")
"""Calls that write a line of the log."""


# -- mutants -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Mutant:
    """One change of one function. `block` is where it is, in the words of those that learn."""

    module: str
    function: str
    line: int
    was: str
    becomes: str
    code: Callable[[], CodeType] = field(repr=False)
    block: str = ""
    nth: int = 0
    found_by: str = ""
    asked: int = 0

    def __str__(self) -> str:
        return f"{self.module}.{self.function}:{self.line}: {self.was}  ->  {self.becomes}"

    @property
    def key(self) -> str:
        """The mutant without its line, which moves."""
        more = f" #{self.nth}" if self.nth else ""
        return f"{self.module}.{self.function}: {self.was}  ->  {self.becomes}{more}"


def mutants_of(module: ModuleType, functions: Sequence[str] = ()) -> Iterator[Mutant]:
    """Return all mutants of a module's functions and methods."""
    path = inspect.getsourcefile(module) or ""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    short = module.__name__.rpartition(".")[2]
    made: Counter[str] = Counter()
    for name, node in _functions(tree):
        if functions and name not in functions:
            continue
        _forget_annotations(node)
        blocks = dict(_blocks(node, 0))
        for place in list(_places(node)):
            for change, less in _changes(place):
                was, becomes = ast.unparse(place), f"without {less}"
                if not less:
                    becomes = ast.unparse(ast.fix_missing_locations(change(place)))
                code = partial(_code_with, tree, path, name, place, change)
                mutant = Mutant(short, name, place.lineno, _short(was), _short(becomes), code)
                mutant.block = f"{short}.{name}:{blocks[place]}"
                mutant.nth = made[mutant.key]
                made[mutant.key] += 1
                yield mutant


def _code_with(
    tree: ast.Module, path: str, name: str, place: ast.AST, change: Callable[[Any], Any]
) -> CodeType:
    with_it = copy.deepcopy(tree)
    target = _same(with_it, tree, place)
    _replace(with_it, target, change(target))
    ast.fix_missing_locations(with_it)
    return _code_of(compile(with_it, path, "exec"), name)


def _blocks(node: ast.AST, line: int) -> Iterator[tuple[ast.AST, int]]:
    """Return each node within, with the first line of the block that it stands in."""
    for _, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        starts = bool(children) and isinstance(children[0], ast.stmt)
        inner = children[0].lineno if starts else line
        for child in children:
            if isinstance(child, ast.AST):
                yield child, inner
                yield from _blocks(child, inner)


def instrumented(module: ModuleType) -> Iterator[tuple[str, CodeType]]:
    """Return the code of a module's functions that say which of their blocks are come through."""
    path = inspect.getsourcefile(module) or ""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    short = module.__name__.rpartition(".")[2]
    names = []
    for name, node in _functions(tree):
        names.append(name)
        _forget_annotations(node)
        for inner in list(ast.walk(node)):
            for _, value in ast.iter_fields(inner):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    key = ast.Constant(f"{short}.{name}:{value[0].lineno}")
                    said = ast.Call(ast.Name(_TOUCH, ast.Load()), [key], [])
                    value.insert(0, ast.copy_location(ast.Expr(said), value[0]))
    ast.fix_missing_locations(tree)
    code = compile(tree, path, "exec")
    for name in names:
        yield name, _code_of(code, name)


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
        case ast.Expr(value=ast.Call() as call) if _called(call) not in _UNASKED:
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
        code = [each for each in inner if each.co_name == part][-1]  # behind its overloads
    return code


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:55]} ... {line[-30:]}"


# -- a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long to look for a test that notices, in seconds of CPU time of this process.

    Args:
        longest: A test that takes longer is not asked.
        enough: A mutant that has not been found by then lives.
        ends: The instant, of `time.monotonic`, from which on no mutant is begun.
    """

    longest: float
    enough: float
    ends: float


class _ElsewhereError(LookupError):
    """A class has taken another function in the place of what is written, as enums do."""


class _TooLongError(BaseException):
    """A test goes on for too long with a mutant."""


class Mutating:
    """A plugin of pytest: it learns what the tests come through, and runs them with each mutant."""

    def __init__(
        self,
        mutants: Sequence[Mutant],
        bounds: Bounds,
        learned: Path,
        databases: Sequence[str],
        heard: Callable[[Mutant], object],
    ) -> None:
        self._databases = databases
        self._mutants = mutants
        self._bounds = bounds
        self._learned = learned
        self._heard = heard
        self._took: dict[str, float] = {}
        self._through: dict[str, list[str]] = {}
        self._touched: set[str] = set()
        self._built: dict[str, list[str]] = {}
        self._statements: list[Any] = []
        self._last: dict[str, list[str]] = {}
        self.spoilt = False
        self._alarms = 0
        self._asking: Mutant | None = None
        # Behind the back of pytest, which keeps what tests print.
        self._out = os.fdopen(os.dup(1), "w", buffering=1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests with each mutant until one of them fails."""
        items = {
            item.nodeid: item for item in session.items if _database_of(item) in self._databases
        }
        self._watch_statements()
        if self._learned.exists():
            known = json.loads(self._learned.read_text(encoding="utf-8"))
            self._took, self._through, self._built = (known[name] for name in _KEPT)
        else:
            self._learn(list(items.values()))
        self._make_what_is_shared(items)
        for n, mutant in enumerate(self._mutants):
            if time.monotonic() > self._bounds.ends:
                mutant.found_by = "not tried"
                continue
            try:
                function = _function(mutant.module, mutant.function)
            except _ElsewhereError:
                mutant.found_by = "not tried"
                continue
            mutant.found_by = self._run(mutant, function, items)
            if self.spoilt and n > 0:  # by this one or by those before: it is the first one again
                mutant.found_by = "not tried"
                return True
            print(f"{'found' if mutant.found_by else 'LIVES'} {mutant}", file=self._out)
            self._heard(mutant)
            if self.spoilt or threading.active_count() > THREADS:
                self.spoilt = True
                return True
        return True

    def _make_what_is_shared(self, items: dict[str, pytest.Item]) -> None:
        """Run a test on each database without a mutant: templates are made once a process."""
        for database in self._databases:
            names = [name for name in self._took if name in items]
            urls = ("database_url", f"{database}_url")
            names = [
                name
                for name in names
                if any(url in getattr(items[name], "fixturenames", ()) for url in urls)
                and _database_of(items[name]) == database
            ]
            if names and self._fails(items[min(names, key=self._took.__getitem__)], 600):
                raise RuntimeError(f"without a mutant a test on {database} fails")

    def _learn(self, items: Sequence[pytest.Item]) -> None:
        touched = self._touched
        right: list[tuple[FunctionType, CodeType]] = []
        for module in all_modules():
            for name, code in instrumented(module):
                with suppress(_ElsewhereError):
                    function = _function(module.__name__.rpartition(".")[2], name)
                    right.append((function, function.__code__))
                    function.__globals__[_TOUCH] = touched.add
                    function.__code__ = code
        for item in items:
            touched.clear()
            began = time.process_time()
            if self._fails(item, 600):
                print(f"without a mutant {item.nodeid} fails", file=self._out)
                continue
            self._took[item.nodeid] = round(time.process_time() - began, 3)
            for block in touched:
                self._through.setdefault(block, []).append(item.nodeid)
        for function, code in right:
            function.__code__ = code
        told = dict(zip(_KEPT, (self._took, self._through, self._built), strict=True))
        self._learned.write_text(json.dumps(told), encoding="utf-8")
        whole = sum(self._took.values())
        print(f"{len(self._took)} tests have passed, in {whole:.0f} s", file=self._out)

    def _watch_statements(self) -> None:
        """Know which blocks a statement came from, which is built once and used by many tests."""
        statements = importlib.import_module(_full("statements")).Statements
        right, touched = statements.prepare, self._touched
        blocks_of: dict[Any, frozenset[str]] = {}

        def prepare(store: Any, builder: Any, *form: Any) -> Any:
            key = (id(store), builder, form)
            if store not in self._statements:
                self._statements.append(store)
            if key in blocks_of:
                touched.update(blocks_of[key])
                return right(store, builder, *form)
            before = frozenset(touched)
            touched.clear()
            prepared = right(store, builder, *form)
            blocks_of[key] = frozenset(touched)
            for block in touched:
                names = self._built.setdefault(block.rpartition(":")[0], [])
                if (name := _name_of(builder)) not in names:
                    names.append(name)
            touched.update(before)
            return prepared

        statements.prepare = prepare

    def _forget(self, mutant: Mutant) -> None:
        """Let statements be built anew that the mutant's function has a part in."""
        names = self._built.get(f"{mutant.module}.{mutant.function}", ())
        for store in self._statements:
            for key in [key for key in store._prepared if _name_of(key[0]) in names]:
                store._prepared.pop(key, None)

    def _run(self, mutant: Mutant, function: FunctionType, items: dict[str, pytest.Item]) -> str:
        last = self._last.setdefault(f"{mutant.module}.{mutant.function}", [])
        names = [name for name in self._through.get(mutant.block, ()) if name in items]
        names = [name for name in names if self._took[name] <= self._bounds.longest]
        names.sort(key=lambda name: (-last.index(name) if name in last else 1, self._took[name]))
        right, code = function.__code__, mutant.code() if names else function.__code__
        ends = time.process_time() + self._bounds.enough
        for name in names:
            if time.process_time() > ends:
                break
            mutant.asked += 1
            within_s = max(15, SLOWER * self._took[name])
            function.__code__ = code
            self._forget(mutant)
            self._asking, mutant.found_by = mutant, name
            try:
                failed = self._fails(items[name], within_s)
            finally:
                function.__code__ = right
                self._forget(mutant)
                self._asking, mutant.found_by = None, ""
            if not failed:
                continue
            # What fails without the mutant too has said nothing: the machine was busy, or the
            # process is not what it was.
            if self._fails(items[name], within_s):
                self.spoilt = self._fails(items[name], within_s)
                if not self.spoilt:
                    continue
            if name in last:
                last.remove(name)
            last.append(name)
            return name
        return ""

    def _fails(self, item: Any, within_s: float) -> bool:
        item._initrequest()
        self._alarms = 0
        signal.signal(signal.SIGALRM, self._too_long)
        signal.setitimer(signal.ITIMER_REAL, within_s, 2)
        # A call of C that does not come back lets no alarm through.
        watch = threading.Timer(within_s + STUCK_S, self._give_up)
        watch.daemon = True
        watch.start()
        try:
            # What belongs to the session stays.
            reports = runtestprotocol(item, log=False, nextitem=item.session)
        except _TooLongError:
            return True
        finally:
            watch.cancel()
            signal.setitimer(signal.ITIMER_REAL, 0)
        return any(report.failed for report in reports)

    def _too_long(self, _number: int, _frame: FrameType | None) -> None:
        self._alarms += 1
        if self._alarms > ALARMS:
            # A test that catches whatever it is ended by goes on for ever with this one.
            self._give_up()
        raise _TooLongError

    def _give_up(self) -> None:
        if self._asking is not None:
            self._heard(self._asking)
            begin_anew()


def begin_anew() -> None:
    """Put a new process in the place of this one; it goes on behind what stands in `--out`."""
    print("a new process goes on", flush=True)
    again = [sys.executable, "-m", "tools.mutation", *sys.argv[1:]]
    os.execv(sys.executable, again)  # noqa: S606 - it is this program


def _function(module: str, name: str) -> FunctionType:
    found: Any = importlib.import_module(_full(module))
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
        found = getattr(found, "__func__", found)
    function: Any = inspect.unwrap(getattr(found, "fget", found))
    if not function.__code__.co_filename.endswith(f"/{module}.py"):
        raise _ElsewhereError(f"{module}.{name} is another's function")
    return function  # type: ignore[no-any-return]


def _database_of(item: pytest.Item) -> str:
    names: Sequence[str] = getattr(item, "fixturenames", ())
    own = any(name in names for name in ("own_postgres", "postgresql_url", "postgresql_store"))
    return "postgresql" if own or "postgresql" in item.nodeid else "sqlite"


def _name_of(builder: Any) -> str:
    return f"{builder.__module__}.{getattr(builder, '__qualname__', builder)}"


# -- modules -------------------------------------------------------------------------------------


def _paths(place: str) -> Iterator[tuple[str, str]]:
    """Return the modules of a part, by their short names; those of migrations are left alone."""
    for path in sorted((ROOT / "workhorse" / place).rglob("*.py")):
        if path.stem != "__init__" and "migrations" not in path.parts:
            yield path.stem, ".".join(path.relative_to(ROOT).with_suffix("").parts)


@functools.cache
def _full_names() -> dict[str, str]:
    # Some modules of both parts have one name: that of the store is meant.
    return {name: full for place in reversed(PLACES) for name, full in _paths(place)}


def _full(name: str) -> str:
    return _full_names()[name]


def all_modules() -> Iterator[ModuleType]:
    """Return the modules that have names here."""
    for full in _full_names().values():
        yield importlib.import_module(full)


# -- the command ---------------------------------------------------------------------------------


def report(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Return tables: how many were found in each module, and what lives."""
    tried = [mutant for mutant in mutants if mutant.found_by != "not tried"]
    yield "| module | mutants | found | live |"
    yield "| --- | --- | --- | --- |"
    for module in dict.fromkeys(mutant.module for mutant in tried):
        mine = [mutant for mutant in tried if mutant.module == module]
        found = sum(bool(mutant.found_by) for mutant in mine)
        yield f"| {module} | {len(mine)} | {found} | {len(mine) - found} |"
    yield ""
    yield "| where | was | becomes | tests that were asked |"
    yield "| --- | --- | --- | --- |"
    for mutant in tried:
        if not mutant.found_by:
            was, becomes = (text.replace("|", "\\|") for text in (mutant.was, mutant.becomes))
            where = f"{mutant.module}.{mutant.function}:{mutant.line}"
            yield f"| {where} | `{was}` | `{becomes}` | {mutant.asked} |"


def _chosen(names: Sequence[str]) -> Iterator[Mutant]:
    for name in names:
        module, _, functions = name.partition(":")
        chosen = functions.split(",") if functions else ()
        modules = [each for each, _ in _paths("store")] if module == "store" else [module]
        for each in modules:
            yield from mutants_of(importlib.import_module(_full(each)), chosen)


def main() -> int:
    """Run mutants, or list them."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation")
    parser.add_argument("names", nargs="*", help="module, or module:function,function, or store")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--sample", type=int, help="that many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="every second function: 1/2 or 2/2")
    parser.add_argument("--minutes", type=float, default=60, help="begin no mutant after that")
    parser.add_argument("--longest", type=float, default=15, help="ask no test that takes longer")
    parser.add_argument("--enough", type=float, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--only", choices=_DATABASES, help="tests on one database alone")
    parser.add_argument("--tests", nargs="*", help="files of tests/ in place of the usual")
    parser.add_argument("--learned", type=Path, default=Path("learned.json"))
    parser.add_argument("--again", type=Path, help="those alone that live by the file of --out")
    parser.add_argument("--out", type=Path, help="a line of JSON for each mutant; it goes on there")
    given = parser.parse_args()
    mutants = list(_chosen(given.names))
    if given.again:
        lines = map(json.loads, given.again.read_text(encoding="utf-8").splitlines())
        living = {each["mutant"] for each in lines if not each["found_by"]}
        mutants = [mutant for mutant in mutants if mutant.key in living]
    if given.sample is not None and given.sample < len(mutants):
        kept = random.Random(given.seed).sample(range(len(mutants)), given.sample)  # noqa: S311
        mutants = [mutants[n] for n in sorted(kept)]
    nth, of = map(int, given.part.split("/"))
    functions = list(dict.fromkeys((mutant.module, mutant.function) for mutant in mutants))
    mine = set(functions[nth - 1 :: of])
    mutants = [mutant for mutant in mutants if (mutant.module, mutant.function) in mine]
    if given.out and given.out.exists():
        lines = map(json.loads, given.out.read_text(encoding="utf-8").splitlines())
        heard_of = {each["mutant"] for each in lines}
        mutants = [mutant for mutant in mutants if mutant.key not in heard_of]
    if given.list:
        print(*mutants, f"{len(mutants)} mutants", sep="\n")
        return 0

    def heard(mutant: Mutant) -> None:
        if given.out is not None:
            told = {"mutant": mutant.key, "line": mutant.line, "found_by": mutant.found_by}
            with given.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(told | {"asked": mutant.asked}) + "\n")

    databases = [given.only] if given.only else list(_DATABASES)
    bounds = Bounds(given.longest, given.enough, time.monotonic() + 60 * given.minutes)
    mutating = Mutating(mutants, bounds, given.learned, databases, heard)
    asked = given.tests or TESTS
    left_out = [] if given.tests else [f"--deselect=tests/{name}" for name in LENGTHY]
    options = [*left_out, "-q", "-p", "no:cacheprovider", "-n", "0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # it is imported already
    answer = pytest.main([*options, *(f"tests/{name}" for name in asked)], plugins=[mutating])
    if answer not in (0, 5):
        return int(answer)
    if mutating.spoilt and given.out:
        begin_anew()
    print("", *report(mutants), sep="\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
