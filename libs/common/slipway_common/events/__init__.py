"""The events of every topic: frozen values, no clock and no I/O."""
