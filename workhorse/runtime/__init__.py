"""One worker process: intake, slots, heartbeat, writer, shutdown."""
