"""Training: configs, the pipelined loop, exact resume, and the kinds of training built on them."""
