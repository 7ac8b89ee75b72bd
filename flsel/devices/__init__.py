"""How fast the clients' simulated devices are, as pure functions of the run's seed.

A class says which devices there are; a *table* holds one device for each client. The table is drawn once a
run and depends on the class, the numbers of examples and the seed alone: every selector meets the same.
Nothing here measures wall time. What a device's speed costs a round is computed in ``flsel.engine``.
"""

from flsel.devices.base import Devices, Table
from flsel.devices.drawn import Equal, HalfNormal, LogNormal, Tiers, Zipf
from flsel.devices.phones import Phones
from flsel.devices.recorded import Recorded

__all__ = [
    "Devices", "Equal", "HalfNormal", "LogNormal", "Phones", "Recorded", "Table", "Tiers", "Zipf",
]  # fmt: skip
