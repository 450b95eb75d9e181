"""The library that the scripts share; AGENTS.md says what lives where."""

import os

# Before anything imports torch: its OpenMP threads spin while they wait, and where the service
# and a script compute at the same time they take each other's cores. On two cores two processes
# of small matrix products took 372 s spinning and 10 s sleeping.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
