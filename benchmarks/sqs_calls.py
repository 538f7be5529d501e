"""`python -m benchmarks.sqs_calls`: the CPU of one call to SQS, by client and by call.

Ten messages a call, one call after the other, the clients in turn, against the endpoint in memory.
What is printed is the least of the rounds: neighbours add to a round and never take away from it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.sqs_endpoint import sqs_endpoint
from lanes import wire
from lanes.sqs.clients import AioCalls, Boto3Calls, Calls, Endpoint, Timing
from lanes.sqs.lean import LeanCalls
from tests.support.sqs import REGION, raw_client
from workhorse.domain.ids import new_run_id
from workhorse.ports import Wakeup

CALLS: Final = 300
ROUNDS: Final = 7
CLIENTS: Final[dict[str, type[Calls]]] = {
    "boto3": Boto3Calls,
    "aioboto3": AioCalls,
    "lean": LeanCalls,
}


async def _round(calls: Calls, url: str) -> dict[str, float]:
    """Return microseconds a call."""
    body = wire.encode(Wakeup(new_run_id(), "bench"))
    entries = [{"Id": str(index), "MessageBody": body} for index in range(10)]
    found = {}
    used = time.process_time()
    for _ in range(CALLS):
        await calls.send_batch(url, entries)
    found["send"] = time.process_time() - used
    used = time.process_time()
    received = [await calls.receive(url, 10, 0) for _ in range(CALLS)]
    found["receive"] = time.process_time() - used
    deletes = [
        [{"Id": str(i), "ReceiptHandle": raw.receipt_handle} for i, raw in enumerate(messages)]
        for messages in received
    ]
    used = time.process_time()
    for each in deletes:
        await calls.delete_batch(url, each)
    found["delete"] = time.process_time() - used
    return {name: seconds / CALLS * 1e6 for name, seconds in found.items()}


async def _measure(endpoint_url: str, url: str) -> dict[str, list[dict[str, float]]]:
    endpoint = Endpoint(endpoint_url, REGION)
    clients = {name: make(endpoint, Timing()) for name, make in CLIENTS.items()}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
    for calls in clients.values():
        await _round(calls, url)  # makes the clients and their connections
    for _ in range(ROUNDS):
        for name, calls in clients.items():
            taken[name].append(await _round(calls, url))
    for calls in clients.values():
        await calls.close()
    return taken


def main() -> int:
    """Measure and print a table."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")  # the endpoint takes any
    with sqs_endpoint() as endpoint_url:
        url = raw_client(endpoint_url).create_queue(QueueName="bench")["QueueUrl"]
        taken = asyncio.run(_measure(endpoint_url, url))
    table = Table("client", "send us", "receive us", "delete us")
    for client, rounds in taken.items():
        least = (min(each[call] for each in rounds) for call in ("send", "receive", "delete"))
        table.add_row(client, *(f"{each:,.0f}" for each in least))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
