"""Explanations for `slipway why`: cause, since when, effect and remedy of a thing's state, a module per kind of thing.
Pure: facts as the services report them in, sentences out."""
