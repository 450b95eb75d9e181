"""Prompts with answers, for RL and for evaluations: from files, generators and the hub.

types      a task
loading    from a spec such as ``reasoning_gym:chain_sum`` or ``rows.jsonl`` to tasks
splits     which tasks train and which evaluate, by their content
rows       one JSON object to one task
files      JSON lines
procedural reasoning-gym's generators
hub        Hugging Face datasets, streamed
programs   HumanEval's problems
"""

from tinkerlab.tasks.loading import SOURCES, load_tasks
from tinkerlab.tasks.splits import Split, without_shared
from tinkerlab.tasks.types import Task

__all__ = ["SOURCES", "Split", "Task", "load_tasks", "without_shared"]
