"""The rules of admission. Pure: no clock, no chance, no I/O."""
