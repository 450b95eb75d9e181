"""Score a base and a trained model on the same held-out items, and keep the results honest.

statistics  means and the paired bootstrap
hashing     fingerprints of items, data files and scoring code
results     the files of ``results/``: names, records, summary
checking    every rule that a ``results/`` folder must obey
items       which items are held out, rendered as the trainer rendered them
nll         scores items concurrently, resumes where it was interrupted
examples    greedy answers of both models to the first few items
"""
