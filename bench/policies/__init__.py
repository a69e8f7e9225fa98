"""Launch policies against each other on a virtual clock: `make policies`."""
