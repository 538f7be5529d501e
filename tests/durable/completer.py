"""Completes a token and dies: `python -m tests.durable.completer URL REF OPERATION`.

It ends by SIGKILL as soon as a transaction of that operation has committed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from workhorse.app import Workhorse
from workhorse.store.base.database import Store


def main(url: str, ref: str, last: str) -> None:
    run = Store.run

    def run_and_die(self: Store, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = run(self, op, *args, **kwargs)
        if op.__name__ == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Store.run = run_and_die  # type: ignore[method-assign]
    with Workhorse(database_url=url, lane="polling") as app:
        app.complete_token(ref, "paid")
    raise SystemExit("it was to die before")


if __name__ == "__main__":
    main(*sys.argv[1:])
