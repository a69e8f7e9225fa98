"""Explanations for `slipway why`: cause, start, effect and remedy of a resource's state, one module per kind of
resource. Pure: takes rows as the services return them, and returns sentences."""
