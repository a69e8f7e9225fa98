"""Use cases of several steps, one per file: each composes statements of the store and decisions of the domain in the
transaction of its caller."""
