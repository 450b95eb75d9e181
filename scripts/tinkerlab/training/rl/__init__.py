"""Reinforcement learning (GRPO-style, group-centred rewards) on tasks with a grader."""
