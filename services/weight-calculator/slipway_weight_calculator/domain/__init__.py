"""Computation of weights and health from outcomes. Pure: no clock, no randomness, no I/O."""
