"""`python -m workhorse.cli`, where the command itself is not on the path."""

from workhorse.cli import main

main()
