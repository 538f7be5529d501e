"""The function that is measured: its handler notes when its first line was reached."""

from __future__ import annotations

import time
from typing import Any

from workhorse import Workhorse, lambda_handler

app = Workhorse(lane="sqs")


@app.task("stamp")
def stamp(name: str) -> float:
    """Return the time of this line."""
    return time.time()


_serve = lambda_handler(app)


def handler(event: Any, context: Any) -> Any:
    """Serve; the time is taken where a user's own code would begin."""
    return _serve(event, context)
