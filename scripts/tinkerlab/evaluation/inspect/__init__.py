"""Inspect's public suites on Tinker models, through tinker-cookbook's bridge."""
