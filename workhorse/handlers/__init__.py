"""What a task author touches: tasks, contexts, codecs."""
