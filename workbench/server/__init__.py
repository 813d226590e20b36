"""The HTTP server: what `workbench serve` answers, and the page that shows it. It needs the extra `server`."""
