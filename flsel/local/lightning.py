"""Classes that need Lightning. Only runs that use them import this module, since the import takes seconds."""

from __future__ import annotations

import logging

_NAMES = ("lightning", "lightning.fabric", "lightning.pytorch")
_LEVELS = {name: logging.getLogger(name).level for name in _NAMES}

from lightning.fabric import Fabric as Fabric  # noqa: E402
from lightning.pytorch import LightningModule  # noqa: E402

from flsel.local.tasks import Classifier  # noqa: E402

# The import sets them anew.
for _name, _level in _LEVELS.items():
    if _level != logging.NOTSET:
        logging.getLogger(_name).setLevel(_level)


class LightningClassifier(Classifier, LightningModule):
    """A :class:`Classifier` for what asks for a LightningModule: callbacks, accelerators, mixed precision."""
