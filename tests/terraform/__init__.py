"""Conformance checks of the provider scheduler, `test_NN_*.py` by their numbers, and tests of its programs."""
