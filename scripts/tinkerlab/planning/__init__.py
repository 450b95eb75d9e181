"""Before a run: which settings to start from, and what it will cost."""
