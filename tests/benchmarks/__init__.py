"""Paired measurements: ratios within one run, never a time by itself."""
