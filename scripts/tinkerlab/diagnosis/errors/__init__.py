"""From an error's text to its cause: a table of patterns, and what the times of a log say."""
