"""How outcomes become weights and gates. Pure: no clock, no chance, no I/O."""
