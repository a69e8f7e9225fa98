"""Pure decisions: no clock, no chance, no I/O."""
