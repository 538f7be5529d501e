"""What Alembic runs: on the connection that `migrating.migrate` opened, in its transaction."""

from alembic import context

config = context.config
connection = config.attributes["connection"]
schema = config.attributes["schema"]
if schema is not None:
    connection = connection.execution_options(schema_translate_map={None: schema})

context.configure(
    connection=connection, version_table="schema_migrations", version_table_schema=schema
)
context.run_migrations()
