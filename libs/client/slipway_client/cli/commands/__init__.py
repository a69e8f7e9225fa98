"""CLI commands, one module per noun. Only imports that every command needs are at the top: the rest is imported where
it is used, so that `slipway` starts fast."""
