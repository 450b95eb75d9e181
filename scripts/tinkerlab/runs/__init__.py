"""Run folders: what a training run leaves on disk, and how to read it back."""
