"""The pytest plugin, as a user's suite meets it: found by its entry point, and light."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SHOP = """
from datetime import timedelta

from workhorse import Context, Workhorse

app = Workhorse(database_url="postgresql://nobody@nowhere.invalid/real")
something = "else"


@app.task("remind")
def remind(ctx: Context, whom: str) -> str:
    ctx.checkpoint("first", lambda: None)
    ctx.sleep("month", timedelta(days=30))
    return f"reminded {whom}"
"""
TESTS = """
from datetime import timedelta

import shop


def test_a_month(workhorse_kit, workhorse_clock):
    run = shop.remind.enqueue("ann")
    workhorse_kit.run_until_idle()
    workhorse_clock.advance(timedelta(days=30))
    workhorse_kit.run_until_idle()
    assert run.result() == "reminded ann"


async def nothing():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's suite beside `shop.py`; the plugin is named, whatever is installed here."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(shop=SHOP)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess(
        "-p", "workhorse.testing.plugin", "-p", "no:cacheprovider", *arguments
    )


def test_the_setting_names_the_app(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nworkhorse_app = shop:app\npythonpath = .\nfilterwarnings = error")
    suite.makepyfile(test_shop=TESTS)

    run(suite).assert_outcomes(passed=1)


def test_a_fixture_of_ones_own_names_the_app(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\npythonpath = .")
    suite.makeconftest(
        """
        import pytest, shop

        @pytest.fixture
        def workhorse_app():
            return shop.app
        """
    )
    suite.makepyfile(test_shop=TESTS)

    run(suite).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", "which app is to be tested?"),
        ("workhorse_app = nowhere:app", "No module named 'nowhere'"),
        ("workhorse_app = shop:nothing", "has no attribute 'nothing'"),
        ("workhorse_app = shop:something", "that is a str, no Workhorse"),
        ("workhorse_app = shop app", "module:attribute"),
    ],
)
def test_an_app_that_is_not_there_is_told_of(
    suite: pytest.Pytester, setting: str, said: str
) -> None:
    suite.makeini(f"[pytest]\npythonpath = .\n{setting}")
    suite.makepyfile(test_shop=TESTS)

    told = run(suite)

    told.assert_outcomes(errors=1)
    told.stdout.fnmatch_lines([f"*{said.replace('[', '[[]')}*"])


def test_a_crash_that_did_not_happen_is_an_error_of_a_test_that_passed(
    suite: pytest.Pytester,
) -> None:
    """A test that failed says enough by itself."""
    suite.makeini("[pytest]\nworkhorse_app = shop:app\npythonpath = .")
    suite.makepyfile(
        test_shop="""
        def test_passes(workhorse_kit):
            workhorse_kit.crash_after("mistyped")

        def test_fails(workhorse_kit):
            workhorse_kit.crash_after("mistyped")
            assert False
        """
    )

    told = run(suite)

    told.assert_outcomes(passed=1, failed=1, errors=1)
    told.stdout.fnmatch_lines(["*ERROR at teardown of test_passes*", "*crash_after:*mistyped*"])


def test_a_kit_is_nothing_that_pytest_collects(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_shop="""
        from workhorse.testing import Kit, LaneSuite, check_replay

        class TestKit(Kit):
            pass
        """
    )

    told = run(suite, "-W", "error")

    told.assert_outcomes()
    assert told.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_who_does_not_use_the_plugin_pays_next_to_nothing() -> None:
    """It is loaded in each run of pytest where Workhorse is installed."""
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import workhorse.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.split() == ["workhorse", "workhorse.testing", "workhorse.testing.plugin"]


def test_the_plugin_is_an_entry_point() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]

    assert project["entry-points"]["pytest11"] == {"workhorse": "workhorse.testing.plugin"}
    assert not any(each.startswith("pytest") for each in project["dependencies"])
