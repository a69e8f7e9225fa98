"""What two or more Slipway services share: events, outbox, consumers, and the one shape of a service."""
