"""The raw loops: what PostgreSQL and Python allow at most. See README.md beside this file."""
