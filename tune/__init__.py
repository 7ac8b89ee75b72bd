"""Hyper-parameter search with Ray Tune and Optuna: planned, nothing is here yet.

A search will drive :class:`flsel.server.Server` one round at a time; a run is already a function of its
config, and selectors already state their search ranges (:class:`flsel.selector.Tunable`).
"""
