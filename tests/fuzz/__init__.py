"""Fuzzed input of each kind: whatever comes from outside is taken, or refused by a typed error.

`make fuzz` runs a hundred thousand inputs and prints how many of each kind; a small share of them
runs with the tests. Whatever raises something else is a defect.
"""
