"""Executes jobs, alone, together in one stack, or on Ray: failure records, retries, signals and progress."""
