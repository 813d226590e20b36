"""Models that cross a boundary: the wire, the disk, the command line's JSON."""
