"""The library that the scripts share; see DESIGN in AGENTS.md for what lives where."""
