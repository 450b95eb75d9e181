"""Live runs on a terminal: find them, say where each one stands, show it as it changes."""
