"""Several runs that differ in a few settings: planned, checked, run side by side, compared."""
