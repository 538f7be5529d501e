"""Orders on AWS Lambda: a worker, scheduled maintenance, and a producer behind an HTTP endpoint.

Three functions from one package of code, each with its own handler setting:

- `on_lambda.handler`: an SQS queue invokes it; it runs the tasks.
- `on_lambda.maintain`: a schedule invokes it each minute; it recovers, promotes and tops up.
- `on_lambda.produce`: a function URL or an API invokes it; it enqueues and answers.

Where the database and the queues are stands in the functions' environment, in
WORKHORSE_DATABASE_URL and the like; see docs/lambda.md. `python examples/on_lambda.py` plays all
three here, on SQLite and a lane inside the process.
"""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from workhorse import AsyncContext, Workhorse, lambda_handler, lambda_maintenance
from workhorse.errors import (
    IdempotencyConflictError,
    InvalidNameError,
    UnstorableValueError,
    ValueTooLargeError,
)

app = Workhorse(lane="sqs")


@dataclass(frozen=True)
class Order:
    """What a customer has ordered."""

    number: int
    item: str


@app.task("orders.fulfil", min_time_left=timedelta(seconds=20))
async def fulfil(ctx: AsyncContext, order: Order) -> str:
    """See an order through; while it waits, no function runs and nothing is paid for."""
    parcel = await ctx.checkpoint("ship", lambda: ship(order.item, key=f"order-{order.number}"))
    await ctx.sleep("a day later", timedelta(days=1))
    return f"{parcel} has arrived"


async def ship(item: str, *, key: str) -> str:
    """Stand for a carrier, which knows a request by its key."""
    print(f"carrier: a {item}, key {key}")
    return f"parcel of {key}"


handler = lambda_handler(app)
maintain = lambda_maintenance(app)


def produce(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Enqueue an order for `POST /`, and answer 202 with its run's id; for HTTP API and URL events.

    Who sends the same request again gets the same run: by the header `Idempotency-Key`, else by the
    order's own number.
    """
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    try:
        body = event.get("body") or ""
        text = base64.b64decode(body).decode() if event.get("isBase64Encoded") else body
        order = Order(**json.loads(text))
        key = headers.get("idempotency-key") or f"order-{order.number}"
        run = fulfil.enqueue(order, key=key)
    except IdempotencyConflictError:
        return _answer(409, {"error": "that key belongs to another order"})
    except (ValueError, TypeError, InvalidNameError, UnstorableValueError, ValueTooLargeError):
        return _answer(400, {"error": 'send {"number": 1, "item": "saddle"}'})
    return _answer(202, {"run_id": run.id})


def _answer(status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "statusCode": status,
        "headers": {"content-type": "application/json"},
        "body": json.dumps(body),
    }


# -- here, without AWS ----------------------------------------------------------------------------


class TwoMinutes:
    """Stands for Lambda's context."""

    def get_remaining_time_in_millis(self) -> int:
        """Return that there is time enough."""
        return 120_000


def main() -> None:
    """Order by HTTP, let the queue invoke the worker, and the schedule maintenance."""
    request = {"headers": {}, "body": json.dumps({"number": 1, "item": "saddle"})}
    answer = produce(request, None)
    print("produce:", answer["statusCode"], produce(request, None) == answer)

    run_id = json.loads(answer["body"])["run_id"]
    body = json.dumps({"workhorse": 1, "run_id": run_id, "queue": "default"})
    record = {
        "messageId": "message-1",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1"},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:workhorse-default",
    }
    print("handler:", handler({"Records": [record]}, TwoMinutes()))
    print("the run:", app.run(run_id).view().state)
    print("maintain:", maintain({}, TwoMinutes())["failed"])


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="workhorse-example-"))
    here = Workhorse(
        database_url=f"sqlite:///{folder / 'shop.sqlite3'}", lane="memory", registry=app.registry
    )
    here.migrate()
    with app.replaced_by(here):
        handler, maintain = lambda_handler(app), lambda_maintenance(app)
        main()
    here.close()
