"""tinker-cookbook's public benchmarks, run on base and checkpoint, in this project's results."""
