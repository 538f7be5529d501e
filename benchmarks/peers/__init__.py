"""One module a peer, run in its own environment: see `benchmarks/compare/kit.py`."""
