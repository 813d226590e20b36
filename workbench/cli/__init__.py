"""The `workbench` command."""
