"""A headless coding agent that does a whole fine-tune in a folder of its own."""
