"""HTTP routes: pools, workers and decisions for people and monitors, and the API of worker agents."""
