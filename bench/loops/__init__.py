"""Loops of the provisioner at two sizes of a fleet: each costs what is due, not what exists."""
