"""Ways for wakeups to travel: memory, notify, polling, sqs."""
