"""The way out of a sandbox: which hosts it may reach, and the proxy and the broker in the keeper that take it there."""
