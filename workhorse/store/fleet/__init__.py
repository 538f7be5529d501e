"""What is known of the processes around the runs: beats, measures, maintenance's steps, bells."""
