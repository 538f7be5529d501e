"""A soak: a fleet at a steady mixed load, broken now and then, looked at every five seconds.

    make soak MINUTES=30            python -m tests.soak --minutes 30
    python -m tests.soak --render   draws docs/soak.svg and docs/soak.md again

It is over when memory, descriptors, connections and tables have shown that they do not grow.

Source: docs/soak.md
"""
