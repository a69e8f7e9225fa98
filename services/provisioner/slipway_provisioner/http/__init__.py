"""Routes: for people and monitors (pools), for machines (workers), for the curious (decisions)."""
