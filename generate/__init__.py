"""Public contracts generated from the code: schemas, an example per event type, AsyncAPI, OpenAPI, tables of the docs.

Also checks that changes to schemas are additive. Output is deterministic: the same code gives the same bytes."""
