"""Does a renderer write what the model reads: prompts, training examples, masks, the template."""
