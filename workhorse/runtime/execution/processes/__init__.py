"""Handlers in processes of their own: for work that keeps a core busy.

`executor` is the worker's side, `child` what runs in a process; between them go frames of JSON.

Source: docs/processes.md; docs/adr/0022-process-executor.md
"""
