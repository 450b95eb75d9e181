"""The two ways in which a tool of this project stops on purpose.

Anything else that escapes is a defect of ours and keeps its traceback.
"""


class InputError(Exception):
    """The user's input is wrong: one line that says what, where and how to mend it (exit 2)."""


class CheckFailed(Exception):
    """The tool worked and found a problem: one line that names it (exit 1)."""
