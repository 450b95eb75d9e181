"""Why a worker can't score with what it was given."""


class Refused(Exception):
    """One line for the user; becomes an ``InputError`` in the host."""
