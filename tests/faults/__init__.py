"""The fault suite: a fleet of real processes, broken by a seeded plan, judged by its own ledger.

    make faults            python -m tests.faults --minutes 15 --runs 10000
    make faults FULL=1     python -m tests.faults --full
    python -m tests.faults --seed 7 --plan      says what it would do

Source: docs/guarantees.md
"""
