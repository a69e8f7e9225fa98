"""Background loops, one per file. Every replica runs each of them."""
