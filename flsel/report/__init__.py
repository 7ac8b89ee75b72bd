"""Pictures of runs: curves, participation, partitions."""
