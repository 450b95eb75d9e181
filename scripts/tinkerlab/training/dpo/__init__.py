"""Direct preference optimisation: its settings, data, loss and run."""
