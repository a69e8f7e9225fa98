"""Code shared by Slipway services: events, outbox, consumers, and the service framework."""
