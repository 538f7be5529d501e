"""The `workhorse` command."""
