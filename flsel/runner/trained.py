"""The trained model of a finished run, built from what its folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flsel.data.population import Normalize, Population
from flsel.data.trees import leaves
from flsel.errors import UserError
from flsel.runner.network import make_model


def describe_inputs(population: Population) -> dict[str, Any]:
    """Describe what a model of the run sees, for ``summary.json``: :func:`trained_model` reads it."""
    where = torch.cat(population.shards[:1])[:1]
    normalize = population.normalize
    seen = normalize(population.examples.read(where)[0])
    if not isinstance(seen, Tensor):
        shapes = {
            name: {"shape": list(t.shape[1:]), "integers": not t.is_floating_point()}
            for name, t in leaves(seen)
        }
        return {"num_classes": population.wanted_outputs, "inputs": shapes}
    return {
        "num_classes": population.wanted_outputs,
        "input_shape": list(seen.shape[1:]),
        "integers": not seen.is_floating_point(),
        "scale": normalize.scale.flatten().tolist(),
        "shift": normalize.shift.flatten().tolist(),
    }


def trained_model(
    given: Any, seed: int, inputs: Mapping[str, Any], params: Mapping[str, Tensor]
) -> nn.Module:
    """Build a run's model with trained parameters, in eval mode, on the CPU.

    Args:
        given: The setting ``model``.
        seed: The run's seed.
        inputs: What :func:`describe_inputs` returned.
        params: Trained parameters and running statistics, by name.

    Raises:
        UserError: If the model no longer has these parameters.
    """
    # Older summaries do not say whether inputs are integers.
    dtype = torch.int64 if inputs.get("integers") else None
    # Several inputs have no shape that a model could ask for.
    none = torch.zeros(0, *inputs["input_shape"], dtype=dtype) if "input_shape" in inputs else ()
    model = make_model(given, inputs["num_classes"], none, seed)
    model.to(next(iter(params.values())).dtype)
    wrong = model.load_state_dict(params, strict=False).unexpected_keys
    if wrong:
        raise UserError(f"model {type(model).__name__} has no parameter {wrong[0]}, which the run trained.")
    return model.eval()


def input_normalisation(inputs: Mapping[str, Any]) -> Normalize:
    """Rebuild what maps a dataset's raw inputs to the model's, from what :func:`describe_inputs` returned."""
    if "inputs" in inputs:
        raise UserError(
            "a run with several inputs has no normalisation to give: its images are in the data set."
        )
    normalize = Normalize()
    for name in ("scale", "shift"):
        setattr(normalize, name, torch.tensor(inputs[name], dtype=torch.float64).view(-1, 1, 1))
    return normalize.to(torch.get_default_dtype())
