"""Provider port and its implementations: one file per provider with its error table, found by entry point."""
