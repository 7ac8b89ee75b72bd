"""Which clients are available when: the modes of FedGS and FLGo, and records, as pure functions.

A mode gives the probability of each client to be available in a round, or at a simulated second. A *trace*
draws the available clients. It depends on the mode, the clients' label counts and the seed only, so it is the
same for every selector.
"""

from flsel.availability.base import Availability, Schedule, Trace
from flsel.availability.intervals import Intervals
from flsel.availability.modes import HOMO, IDL, LDF, LN, MDF, SLN, YC, YFF, YMF

__all__ = [
    "HOMO", "IDL", "LDF", "LN", "MDF", "SLN", "YC", "YFF", "YMF", "Availability", "Intervals", "Schedule",
    "Trace",
]  # fmt: skip
