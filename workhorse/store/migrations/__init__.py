"""Alembic migrations of the store's schema."""
