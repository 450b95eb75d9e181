"""Where the time of a running script goes: the watchdog, its trace, and the judge of it.

``child/`` is what runs inside the user's process; everything else runs outside of it.
"""
