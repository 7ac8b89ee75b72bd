"""Classes of Lightning that the settings declare, without importing Lightning."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
else:

    class _Standing(type):
        def __subclasscheck__(cls, made: type) -> bool:
            # Nothing is derived from a class that has not been imported.
            lightning = sys.modules.get("lightning.pytorch")
            return made is cls or (lightning is not None and issubclass(made, lightning.Callback))

    class Callback(metaclass=_Standing):
        """Stands for ``lightning.pytorch.Callback``: what is derived from that is derived from this."""
