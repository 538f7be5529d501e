"""Tables, transactions, all SQL: once for PostgreSQL and SQLite."""
