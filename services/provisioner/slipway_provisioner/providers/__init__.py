"""The only port: clouds. One file per provider, its error table in it; found by entry point."""
