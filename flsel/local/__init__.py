"""Local training: what the clients of a round do, one by one or vectorised over clients."""
