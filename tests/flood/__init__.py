"""Callers that send too much, beside people, machines and holders of leases (`make flood`)."""
