"""Count what a round costs: models and bytes sent, local trainings."""

from __future__ import annotations

from collections import Counter

from flsel.stack import Params, model_bytes


def count_models_down(ledger: Counter[str], models: int, params: Params) -> None:
    """Count ``models`` models like ``params`` sent to clients."""
    ledger["models_down"] += models
    ledger["bytes_down"] += models * model_bytes(params)


def count_models_up(ledger: Counter[str], models: int, params: Params) -> None:
    """Count ``models`` models or gradients like ``params`` sent to the server."""
    ledger["models_up"] += models
    ledger["bytes_up"] += models * model_bytes(params)


def count_trainings(ledger: Counter[str], clients: int, params: Params, *, down: int, up: int) -> None:
    """Count local training of ``clients`` clients: ``down`` model-sized messages to each and ``up`` back."""
    count_models_down(ledger, clients * down, params)
    count_models_up(ledger, clients * up, params)
    ledger["trainings"] += clients
