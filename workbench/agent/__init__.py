"""The run loop, sessions, and what they stand on."""
