"""Training rows from a teacher: a model's replies to prompts, filtered and counted.

prompts    what the teacher is asked: the system prompt, and what must stay held out
selection  which replies become rows, and why the others do not; pure functions
run        sample, select, and write the file that sl_trainer.py trains on
"""
