"""Read a training script without running it, and name what makes it slow, stale or lose work."""
