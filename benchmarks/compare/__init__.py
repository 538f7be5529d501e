"""`make bench-compare`: Workhorse beside its peers, each by its public API, in one session."""
