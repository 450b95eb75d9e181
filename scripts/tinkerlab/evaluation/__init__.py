"""Score a base and a trained model on the same held-out items, and keep the results honest.

statistics  means and the paired bootstrap
hashing     fingerprints of items, data files and scoring code
results     the files of ``results/``: names, records, summary
checking    every rule that a ``results/`` folder must obey
items       which items are held out, rendered as the trainer rendered them
nll         scores items concurrently, resumes where it was interrupted
examples    greedy answers of both models to the first few items
offline     an application's own evaluation: tasks, graders, one model or two
attempts    samples replies and grades them side by side, resumes where it was interrupted
offline_records  its records and figures; passk, slices: pass@k, scores by a field's values
offline_run what it takes from a run's folder
judge       a model as the grader
clients     sampling clients of the models that are compared
selection   a room: which checkpoint of a run to take
"""
