"""Which tests say nothing where their databases are behind a pooler: see `make pooler`.

They look at sessions, which are the pooler's there; or they need something of a session that the
product does not, and that is not to be had. Everything else has to pass.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Final

import pytest

UNFIT: Final = {
    "tests/store/test_notifying.py::*": "they listen by the store's own address; see test_poolers",
    "tests/lanes/test_notify.py::*": "they listen by the store's own address; see test_poolers",
    "tests/store/test_stale_tokens.py::test_after_a_restore*": "a copy is made of what nobody uses",
    "tests/store/test_time.py::test_case_9_the_zone*": "a pooler says the client's zone",
    "tests/store/test_time.py::test_case_9_the_databases_own_clock*": "as before",
    "tests/store/test_storm.py::*[repeatable read]": "its look at the default has an old session",
    "tests/store/test_storm.py::*[serializable]": "its look at the default has an old session",
    "tests/store/test_connecting.py::test_options_of_the_url*": "PgBouncer refuses options",
    "tests/store/test_connecting.py::test_the_isolation*": "half of it is without a pooler",
    "tests/store/test_connecting.py::test_what_writes_by_one*": "there is one only without it",
    "tests/store/test_connecting.py::test_without_a_pooler*": "it says so itself",
    "tests/store/test_connections.py::test_a_closed_store*": "the pooler keeps the sessions",
    "tests/store/test_enqueueing.py::test_a_plain_batch_is*": "it counts statements",
    "tests/store/test_migrating.py::test_the_migrations_make*": "it gives options in the URL",
    "tests/runtime/test_case_11.py::*": "their own watching connection prepares statements",
    "tests/runtime/test_case_13.py::*": "their own watching connection prepares statements",
}


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        for pattern, why in UNFIT.items():
            # Brackets are a parameter's here.
            if fnmatch.fnmatchcase(item.nodeid, pattern.replace("[", "[[]")):
                item.add_marker(pytest.mark.skip(reason=f"not behind a pooler: {why}"))
