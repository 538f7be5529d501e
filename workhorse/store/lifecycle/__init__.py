"""The states of a run in turn: claimed, suspended or settled, recovered, promoted."""
