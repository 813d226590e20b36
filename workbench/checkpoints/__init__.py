"""Git-backed snapshots of an overlay's upper layer."""
