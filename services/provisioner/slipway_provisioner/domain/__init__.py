"""Pure domain logic: no clock, no randomness, no I/O."""
