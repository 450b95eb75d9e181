"""Look at an environment, a script, a run or a model, decide what is wrong, and say why."""
