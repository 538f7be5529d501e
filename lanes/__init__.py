"""Ways for wakeups to travel: memory, polling, sqs."""
