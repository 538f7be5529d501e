"""A lane over Amazon SQS: hints travel as messages, the truth stays in the store."""

from lanes.sqs.clients import Timing
from lanes.sqs.lane import SqsLane

__all__ = ["SqsLane", "Timing"]
