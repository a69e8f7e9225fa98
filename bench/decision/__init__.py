"""Cost of a planning decision, and the path from a report of demand to the provider, by the size of the deployment."""
