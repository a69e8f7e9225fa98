"""What crosses a wire, and nothing else: types of bodies and events, limits of text, problems. Values only."""
