"""Runs over a real Flower federation: the server asks nodes, and the nodes train on their own shards.

:mod:`flsel.flower.adapter` alone imports flwr. The extra ``flsel[flower]`` installs it.
"""
