"""Workspaces as filesystems of other libraries."""
