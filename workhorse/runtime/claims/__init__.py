"""From wakeups and scans to claimed runs: intakes, slots, receipts."""
