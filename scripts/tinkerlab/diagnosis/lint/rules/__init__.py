"""The rules: each a function from a ``Program`` to what it finds there."""
