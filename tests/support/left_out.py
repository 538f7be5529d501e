"""What a run of the tests has left out, and how to get it, said at its end.

Skipped tests are counted by their reason, which says what to do. Where the whole suite was asked
for, the make targets that try and measure what no test does follow, as the Makefile names them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import pytest

_NOT_MEANT: Final = "not meant for this one: "
_TARGET: Final = re.compile(r"^([a-z-]+):.*?## (.*)$", re.MULTILINE)
_OTHER_PURPOSE: Final = frozenset({
    "help", "setup", "demo", "test", "check", "lint", "format", "types", "imports", "coverage",
    "local-up", "local-down", "templates", "image", "lock", "clean",
})  # fmt: skip
"""Targets that try nothing beyond the tests."""


def skip_where_not_meant(why: str) -> NoReturn:
    """Skip a test that has nothing to say of what it was parametrized with: nothing is left out."""
    pytest.skip(f"{_NOT_MEANT}{why}")


class LeftOut:
    """A plugin that tells; also where others run the tests, as with pytest-xdist.

    Args:
        makefile: Where the targets are.
    """

    def __init__(self, makefile: Path) -> None:
        self._makefile = makefile
        self._tests: Counter[str] = Counter()
        self._modules: dict[str, str] = {}

    def add(self, reason: str, count: int) -> None:
        """Count tests that were left out without a report of their own."""
        self._tests[reason] += count

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that was skipped."""
        reason = _reason_of(report)
        if reason is not None:
            self._tests[reason] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a module that was skipped whole; each process of xdist tells of it."""
        reason = _reason_of(report)
        if reason is not None:
            self._modules[report.nodeid] = reason

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Say it."""
        lines = [f"{_counted(count, 'test')}: {reason}" for reason, count in _items(self._tests)]
        modules = Counter(self._modules.values())
        lines += [f"{_counted(count, 'module')}: {reason}" for reason, count in _items(modules)]
        if config.args_source == pytest.Config.ArgsSource.TESTPATHS and not _narrowed(config):
            told = "\n".join(lines)
            others = {
                name: what
                for name, what in targets(self._makefile).items()
                if f"make {name}`" not in told
            }
            if others:
                lines.append("no part of `make test`, and run by themselves:")
                width = max(map(len, others))
                lines += [f"  make {name:{width}}  {what}" for name, what in others.items()]
        if lines:
            terminalreporter.section("left out")
            for line in lines:
                terminalreporter.line(line)


def targets(makefile: Path) -> dict[str, str]:
    """Return the make targets that try or measure what the tests do not, with what they say."""
    found = _TARGET.findall(makefile.read_text())
    return {name: what for name, what in found if name not in _OTHER_PURPOSE}


def _reason_of(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    # What is expected to fail is "skipped" too, and has another `longrepr`.
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return None
    reason: str = report.longrepr[2].removeprefix("Skipped: ")
    return None if reason.startswith(_NOT_MEANT) else reason


def _narrowed(config: pytest.Config) -> bool:
    return any(config.getoption(name, None) for name in ("keyword", "markexpr", "lf", "deselect"))


def _items(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted((reason, count) for reason, count in counted.items() if count)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"
