"""Figures, measured on real servers. Each is set against a yardstick of the same run: only ratios travel."""
