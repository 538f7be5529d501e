"""A worker that lives in the invocations of a function."""
