"""Which checkpoint of a run to take, by three layers: held-out loss, benchmarks, application evals.

checkpoints what the run saved, and how many optimizer updates each one holds
logged      layer from the run's own held-out metrics, each checkpoint with its evaluation
found       results folders: which checkpoint each is about, and on what
layers      scores of checkpoints on the same items, and how far apart two of them are
decide      the rule, and its reasons
warnings    what speaks against trusting the run, or the choice
measure     evaluates every checkpoint, the base model once
select      all of it together: read, decide, write
report, plot, document   the page, the picture, the JSON
"""
