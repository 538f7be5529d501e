#!/usr/bin/env python3
"""Make the SQS queues of a local environment, each with a dead-letter queue.

LocalStack and MiniStack run it when they are ready, from /etc/localstack/init/ready.d, and
`make local-up` runs it by itself; by hand it takes any endpoint.

Environment:
    AWS_ENDPOINT_URL: Where SQS is; http://127.0.0.1:4566 by default.
    QUEUES: The names that runs carry, with commas or spaces between; `default` is always made.
    PREFIX: What stands before them in SQS; `workhorse-` by default, as in the settings.

What is there already stays. It needs botocore alone, and runs as a program and by `exec`.
"""

import json
import os

import botocore.session


def make_queues(client, names, prefix):
    """Make the queues, with settings as docs/wakeups.md advises."""
    for name in names:
        dead = client.create_queue(
            QueueName=f"{prefix}{name}-dead",
            # As long as SQS keeps them, so that somebody has the time to look.
            Attributes={"MessageRetentionPeriod": "1209600"},
        )
        found = client.get_queue_attributes(QueueUrl=dead["QueueUrl"], AttributeNames=["QueueArn"])
        redrive = {
            "deadLetterTargetArn": found["Attributes"]["QueueArn"],
            "maxReceiveCount": "10",
        }
        attributes = {"VisibilityTimeout": "60", "RedrivePolicy": json.dumps(redrive)}
        client.create_queue(QueueName=f"{prefix}{name}", Attributes=attributes)
        print(f"queue {prefix}{name}, with {prefix}{name}-dead for dead letters")


def wanted_names(text):
    """Return the names in order, `default` first, each once."""
    return list(dict.fromkeys(["default", *text.replace(",", " ").split()]))


session = botocore.session.get_session()
client = session.create_client(
    "sqs",
    endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or "http://127.0.0.1:4566",
    region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
    aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID") or "test",
    aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY") or "test",
)
make_queues(
    client, wanted_names(os.environ.get("QUEUES", "")), os.environ.get("PREFIX", "workhorse-")
)
