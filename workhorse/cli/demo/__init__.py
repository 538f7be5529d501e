"""`workhorse demo`: a small fleet of real processes, on parts that it starts itself.

Source: docs/cli.md
"""
