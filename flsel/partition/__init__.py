"""How a dataset is split over clients: pure functions of (labels, parameters, generator).

One module per family; every scheme is a small frozen value class derived from :class:`Partition`.
"""

from flsel.partition.base import Partition
from flsel.partition.basic import IID, BySize, Natural, Shards
from flsel.partition.dirichlet import Dirichlet, DirichletPerClass, HicsDirichlet
from flsel.partition.fedcor import FedCorDirichlet
from flsel.partition.fedgen import FedGenDirichlet
from flsel.partition.fedgs import FedGSLogNormal, LabelLimited
from flsel.partition.fedpns import FedPNSMix
from flsel.partition.from_file import FromFile
from flsel.partition.from_flower import FromFlower

__all__ = [
    "IID",
    "BySize",
    "Dirichlet",
    "DirichletPerClass",
    "FedCorDirichlet",
    "FedGSLogNormal",
    "FedGenDirichlet",
    "FedPNSMix",
    "FromFile",
    "FromFlower",
    "HicsDirichlet",
    "LabelLimited",
    "Natural",
    "Partition",
    "Shards",
]
