"""Types of bodies and events, limits of text and problems: all that crosses a wire. Values only."""
