"""One file per topic: facts become rows."""
