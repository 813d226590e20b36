"""What a model can call."""
