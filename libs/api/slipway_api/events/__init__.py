"""Events of all topics: immutable values without clock or I/O."""
