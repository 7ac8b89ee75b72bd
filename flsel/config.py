"""Groups of run settings, free of torch so that they can be read without loading it.

Each field is a key of the YAML file and of the command line (``--local.batch_size 32``); the text under
it is the comment that ``flsel train --print_config`` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrackConfig:
    """Where a run is tracked besides its own ``metrics.csv``.

    Attributes:
        tracker: ``none``, ``wandb`` or ``tensorboard``.
        project: W&B project.
        entity: W&B user or team; the key's own if not given.
        group: W&B group; the dataset's name if not given.
        tags: W&B tags besides the selector's and the dataset's names.
        mode: W&B mode; ``auto`` is online where an API key is found and offline elsewhere.
    """

    tracker: Literal["none", "wandb", "tensorboard"] = "none"
    project: str = "flsel"
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
