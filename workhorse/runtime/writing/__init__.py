"""What is written for activations: group commit, answers, refusals, the wakeups that follow."""
