"""From a checkpoint to the real workspace: change set, diff, commit."""
