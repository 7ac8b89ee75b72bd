"""What happens to updates on their way: the steps of each, and how the server joins them; one file each."""

from flsel.updates.aggregate import Aggregate, Mean
from flsel.updates.clip import Clip
from flsel.updates.corrupt import Corrupt
from flsel.updates.gaussian_noise import GaussianNoise
from flsel.updates.krum import Krum, MultiKrum
from flsel.updates.median import Median
from flsel.updates.quantise import Quantise
from flsel.updates.top_k import TopK
from flsel.updates.trimmed_mean import TrimmedMean
from flsel.updates.update_step import Message, Senders, UpdateStep

__all__ = [
    "Aggregate",
    "Clip",
    "Corrupt",
    "GaussianNoise",
    "Krum",
    "Mean",
    "Median",
    "Message",
    "MultiKrum",
    "Quantise",
    "Senders",
    "TopK",
    "TrimmedMean",
    "UpdateStep",
]
