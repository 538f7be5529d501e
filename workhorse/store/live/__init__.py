"""The live row of a run: its lease, its turn, its end, and the note for whoever waits for that."""
