"""What the end of a run says of what it has left out."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.left_out import targets

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
CONFTEST = f"""
from pathlib import Path
from tests.support.left_out import LeftOut

def pytest_configure(config):
    left_out = LeftOut(Path({str(ROOT / "tests")!r}).parent / "Makefile")
    config.pluginmanager.register(left_out)
    left_out.add("emulators are left out; run them with `make emulators`", 2 * MORE)

MORE = 0
"""
TESTS = """
import pytest
from tests.support.left_out import skip_where_not_meant

@pytest.mark.parametrize("number", range(3))
def test_needs(number):
    pytest.skip("the program pgbouncer is missing; tools.fault_tools installs it")

@pytest.mark.skipif(True, reason="needs Node.js")
def test_marked():
    pass

@pytest.mark.xfail
def test_expected_to_fail():
    assert False

def test_of_another_database():
    skip_where_not_meant("SQLite has no bells")

def test_passes():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\ntestpaths = ['of_ours']\n")
    pytester.makeconftest(CONFTEST)
    folder = pytester.mkpydir("of_ours")
    (folder / "test_tests.py").write_text(TESTS)
    (folder / "test_module.py").write_text(
        "import pytest\npytest.importorskip('no_such_module')\n\ndef test_it(): pass\n"
    )
    return pytester


def said(suite: pytest.Pytester, *arguments: str) -> list[str]:
    """Return the lines of the section."""
    ran = suite.runpytest_subprocess("-p", "no:cacheprovider", *arguments)
    assert ran.ret == 0, ran.stderr.str()
    lines = iter(ran.outlines)
    if not any(line.strip("= ") == "left out" for line in lines):
        return []
    return list(itertools.takewhile(lambda line: line and not line.startswith("="), lines))


SKIPPED = [
    "1 test: needs Node.js",
    "3 tests: the program pgbouncer is missing; tools.fault_tools installs it",
    "1 module: could not import 'no_such_module': No module named 'no_such_module'",
]


@pytest.mark.parametrize("how", [(), ("-p", "xdist", "-n", "2")], ids=["here", "xdist"])
def test_the_whole_suite_says_what_was_skipped_and_what_is_run_apart(
    suite: pytest.Pytester, how: tuple[str, ...]
) -> None:
    lines = said(suite, *how)

    apart = targets(ROOT / "Makefile")
    assert lines[:3] == SKIPPED
    assert lines[3] == "no part of `make test`, and run by themselves:"
    assert [line.split()[1] for line in lines[4:]] == list(apart)
    assert {"fuzz", "faults", "synth", "bench", "emulators"} <= set(apart)
    assert not {"test", "lint", "help", "clean"} & set(apart)


def test_a_part_of_the_suite_says_what_was_skipped_alone(suite: pytest.Pytester) -> None:
    assert said(suite, "of_ours") == SKIPPED
    assert said(suite, "-k", "needs or module")[0].startswith("3 tests: ")
    assert said(suite, "-k", "passes") == SKIPPED[2:]


def test_a_target_that_a_reason_names_is_not_named_again(suite: pytest.Pytester) -> None:
    conftest = suite.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("2 * MORE", "2"))

    lines = said(suite)

    assert "2 tests: emulators are left out; run them with `make emulators`" in lines
    assert not [line for line in lines if line.startswith("  make emulators")]


def test_nothing_left_out_says_nothing(suite: pytest.Pytester) -> None:
    (suite.path / "of_ours" / "test_module.py").unlink()

    assert said(suite, "-k", "passes") == []
