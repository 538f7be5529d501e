"""What the rest of the store stands on: the tables, connections, transactions, dialects."""
