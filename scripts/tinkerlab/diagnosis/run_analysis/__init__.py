"""What is wrong with a run folder: read what a run left, decide, name the cause."""
