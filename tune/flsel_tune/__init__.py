"""``flsel tune``: hyper-parameter search with Ray Tune and Optuna; it sees a config in and metrics out."""
