"""Going on where another agent stopped: its conversation, and its edits one by one, as a session of a workspace."""
