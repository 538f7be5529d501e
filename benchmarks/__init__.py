"""What `make bench` runs: rates and latencies, printed with their conditions."""
