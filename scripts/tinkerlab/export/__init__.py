"""From a trained checkpoint to files that others can load, and the proof that they are right.

Building is tinker-cookbook's work (``tinker_cookbook.weights``); this room adds what it lacks:
the check that what was built computes what the service computes.
"""
