"""How long a function takes from the start of its process to the first line of a handler."""
