"""Answers that are waited for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from workhorse.handlers.recording import Pending


def test_who_waits_is_woken_ahead_of_callbacks_that_were_there_before() -> None:
    """A callback may count turns of the loop, which the one who waits is to use."""
    order: list[str] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:  # type: ignore[override]
            order.append("waiter")
            return super().call_soon_threadsafe(*args, **options)

    async def wait() -> None:
        pending: Pending[str] = Pending()
        pending.on_done(lambda: order.append("callback"))
        task = asyncio.create_task(pending.result_async())
        await asyncio.sleep(0)  # it waits now
        thread = threading.Thread(target=pending.answer, args=("answer",))
        thread.start()
        assert await task == "answer"
        thread.join()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(wait())

    assert order == ["waiter", "callback"]
