"""Score completions: built-in verifiers and user code, for RL rewards and for evaluations.

types      what a grader takes and gives
texts      which answer a completion states
loading    from a spec such as ``numeric`` or ``my_rewards.py:score`` to a grader
rules      graders that are quick and safe in this process: exact, numeric, contains
process    a worker process: start, ask with a time limit, stop with all it started
isolated   graders that live in such a worker: user code, unit tests, math, regex, ...
worker/    what runs inside the worker
"""

from tinkerlab.grading.loading import KINDS, load_grader
from tinkerlab.grading.types import Attempt, Grade, Grader
from tinkerlab.grading.usable import require_usable

__all__ = ["KINDS", "Attempt", "Grade", "Grader", "load_grader", "require_usable"]
