"""Language models over their wire formats."""
