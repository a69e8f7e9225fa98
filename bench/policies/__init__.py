"""Comparison of launch policies on a virtual clock: `make policies`."""
