"""Running commands on an overlay: backends, the supervisor inside, the keeper outside."""
