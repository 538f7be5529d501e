"""Handlers are called, watched over and kept alive: executors, heartbeat, monitor."""
