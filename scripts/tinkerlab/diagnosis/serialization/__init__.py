"""What a training step and a sample cost to serialize, measured with the SDK's own functions."""
