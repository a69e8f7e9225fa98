"""One module per noun. They import at the top only what every command needs: the rest is imported where it is used,
so that `slipway` answers at once."""
