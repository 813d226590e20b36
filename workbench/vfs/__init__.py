"""The virtual filesystem: paths, storages and the overlay."""
