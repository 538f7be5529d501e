"""The garbage collector of a worker's process, each time in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from tests.runtime import garbage_program


def told(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_what_was_there_is_left_alone_and_the_young_are_looked_at_less_often() -> None:
    said = told("""
        import gc
        from workhorse.runtime.base.garbage import tend_garbage
        before = gc.get_threshold()
        tend_garbage()
        after = gc.get_threshold()
        print(after[0], after[1:] == before[1:], gc.get_freeze_count() > 1000)
    """)
    assert said == ["10000", "True", "True"]


def test_cycles_are_collected_still() -> None:
    said = told("""
        import gc, weakref
        from workhorse.runtime.base.garbage import tend_garbage

        class Node:
            pass

        tend_garbage()
        node = Node()
        node.itself = node
        seen = weakref.ref(node)
        del node
        kept = [[] for _ in range(20_000)]
        print(seen() is None)
    """)
    assert said == ["True"]


@pytest.mark.parametrize("given", ["gc.disable()", "gc.set_threshold(50_000)"])
def test_a_process_that_has_a_setting_of_its_own_keeps_it(given: str) -> None:
    said = told(f"""
        import gc
        from workhorse.runtime.base.garbage import tend_garbage
        {given}
        before = gc.get_threshold(), gc.isenabled()
        tend_garbage()
        print((gc.get_threshold(), gc.isenabled()) == before, gc.get_freeze_count())
    """)
    assert said == ["True", "0"]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What the runs of each handler have left to the collector."""
    url = f"sqlite:///{tmp_path_factory.mktemp('garbage') / 'runs.db'}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.garbage_program", url],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told: dict[str, dict[str, int]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("handler", [each.__name__ for each in garbage_program.HANDLERS])
def test_what_a_run_leaves_is_freed_at_once(left: dict[str, dict[str, int]], handler: str) -> None:
    assert left[handler] == {}
