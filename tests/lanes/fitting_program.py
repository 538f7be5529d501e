"""A process as a deployment starts it: one wakeup sent and received over each client.

    python -m tests.lanes.fitting_program RELATIVE_HOST

It is told everything by its environment, prints what each client reported, and where ECS's address
of credentials is given as `RELATIVE_HOST`, that stands for 169.254.170.2.
"""

from __future__ import annotations

import asyncio
import sys

from botocore.utils import ContainerMetadataFetcher

from lanes.sqs import SqsLane
from workhorse.domain.ids import new_run_id
from workhorse.ports import LaneContext, Outgoing, Wakeup
from workhorse.settings import load_settings
from workhorse.telemetry import Counters

CLIENTS = ("boto3", "aioboto3", "lean")


def main(relative_host: str) -> None:
    if relative_host:
        ContainerMetadataFetcher.IP_ADDRESS = relative_host
    for client in CLIENTS:
        lane = SqsLane(LaneContext(load_settings(lane="sqs", sqs_client=client), Counters()))
        outgoing = [Outgoing(Wakeup(new_run_id(), "q"))]
        for report in (lane.send(outgoing), asyncio.run(lane.send_async(outgoing))):
            print(client, "sent", report.sent, report.error)
        print(client, "received", len(lane.receiver("q").receive(1, 0)))
        lane.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
