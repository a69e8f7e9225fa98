"""What outsiders may rely on, written down from the code: schemas, an example per event type, AsyncAPI, the tables of
the docs; and the check that a change to them only adds. Reads no clock and draws no chance: the same code gives the
same bytes."""
