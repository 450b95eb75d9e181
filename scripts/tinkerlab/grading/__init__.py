"""Score completions: built-in verifiers and user code, for RL rewards and for evaluations."""
