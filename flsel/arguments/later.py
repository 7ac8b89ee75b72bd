"""Classes of Lightning and torchmetrics that the settings declare, without importing either."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from torch.nn import Module as Loss
    from torch.nn import Module as Transform
    from torchmetrics import Metric as Metric

    __all__ = ["Callback", "Loss", "Metric", "Transform"]
else:

    class _Standing(type):
        """The class of stand-ins; each names the module of what it stands for."""

        def __subclasscheck__(cls, made: type) -> bool:
            # Nothing is derived from a class that has not been imported.
            home = sys.modules.get(cls.home)
            named = vars(cls).get("named", cls.__name__)
            return made is cls or (home is not None and issubclass(made, getattr(home, named)))

        def __instancecheck__(cls, value: object) -> bool:
            return cls.__subclasscheck__(type(value))

    class Callback(metaclass=_Standing):
        """Stands for ``lightning.pytorch.Callback``: what is derived from that is derived from this."""

        home = "lightning.pytorch"

    class Metric(metaclass=_Standing):
        """Stands for ``torchmetrics.Metric``: what is derived from that is derived from this."""

        home = "torchmetrics"

    class Loss(metaclass=_Standing):
        """Stands for ``torch.nn.Module`` where it is a loss."""

        home, named = "torch.nn", "Module"

    class Transform(metaclass=_Standing):
        """Stands for ``torch.nn.Module`` where it transforms images: torchvision's v2."""

        home, named = "torch.nn", "Module"
