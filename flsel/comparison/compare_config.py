"""The settings of a comparison, beside those of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flsel.arguments import Range, UserPath, check_settings
from flsel.comparison.judging.boundaries import FIRST_LOOK, MOST_SEEDS
from flsel.comparison.judging.designs import check_decides
from flsel.comparison.load_runs import Mismatch, Pick
from flsel.errors import UserError
from flsel.execution.executor import Resources, check_gpus
from flsel.files import check_folder_name
from flsel.runner.cost_axes import COST_AXES


def check_cost(name: str | None) -> None:
    """Refuse what is no axis of costs.

    Raises:
        UserError: If it is none.
    """
    if name is not None and name not in COST_AXES:
        raise UserError(f"cost must be one of {', '.join(COST_AXES)}, got {name!r}.")


@dataclass(frozen=True)
class CompareConfig:
    """One comparison.

    Attributes:
        selectors: Selectors to compare, with arguments after colons: ``Uniform,PowD:d=12,HiCS``.
        variants: YAML file that gives each variant a name, and settings to change or the path of a config
            such as a sweep's ``best.yaml``.
        seeds: Seeds of the runs: ``5`` is 1 to 5, ``1..10`` a range, ``1,2,7`` a list; null is the
            run's seed.
        grid: Settings that vary: ``KEY=VALUE,VALUE``. May be repeated. Every combination is a scenario.
        baseline: The variant that the others are compared with; null is Uniform, or the first.
        target: Test accuracy to reach, in (0, 1], or other score of the runs; null is the run's
            ``evaluation.target``. Without one, it is chosen from the baseline's runs, and the report says so.
        cost: Cost to the target in the verdicts: ``rounds``, ``bytes``, ``bytes_down``,
            ``bytes_up``, ``models``, ``passes``, ``trainings``, ``seconds`` or ``simulated_seconds``; null is
            rounds, or what a resumed comparison has.
        last: Number of evaluations in the mean at the end and in the running mean to the target, >= 1; null
            is 10, or what a resumed comparison has.
        pick: Run to take if existing runs have the same settings and seed: ``newest`` or ``oldest``; null
            refuses them by name.
        until_decided: Run seeds until every claim is decided: better, worse or equivalent within the margin.
        decides: Measure that ``until_decided`` decides: ``accuracy``, which stands for the runs'
            ``evaluation.score``, or the cost to ``target``: ``rounds``, ``models``, ``bytes``,
            ``bytes_down``, ``bytes_up``, ``trainings``, ``seconds`` or ``simulated_seconds``, which is then
            also the report's ``cost``; null is accuracy.
        margin: Half-width of practical equivalence in points of accuracy, or the unit of another score, > 0;
            null claims no equivalence.
        margin_ratio: Ratio of two costs to the target up to which they are equivalent in practice,
            in (1, 10]: ``1.1`` is 10 %; null claims no equivalence. For ``until_decided`` if a cost decides.
        level: Confidence level of all intervals, in [0.5, 1); one minus it is the chance of any false claim.
            Null is 0.95, or what a resumed comparison has.
        budget: Amount of the cost that decides (or of ``cost``) at which every run ends, such as ``2GB`` or
            ``6h``: a run that does not arrive has then spent as much as the others; null ends runs by their
            rounds.
        max_seeds: Largest number of seeds of ``until_decided``, 6 to 1000; null is 30.
        each_scenario: Decide every scenario of ``grid`` separately instead of the mean over all of them.
        mismatch: What to do with existing runs that do not fit: ``refuse`` them, ``drop`` them (listed, not
            counted), or compare them ``unpaired``.
        max_concurrent: Largest number of runs at a time, >= 1; Ray executes more than one.
        cpus: CPUs of a run, > 0, with Ray.
        gpus: GPUs of a run, >= 0, with Ray; a fraction lets runs share one.
        memory: Gigabytes reserved for a run, > 0, or null, with Ray.
        address: Ray cluster to use, ``auto`` or host:port; null starts Ray on this machine.
        retries: How often a run is resumed after its process died, >= 0, with Ray.
        name: Name of the comparison's folder; null makes one of dataset and variants. ``--output.name`` is
            the same.
        folder: Folder of all comparisons. ``--output.dir`` is the same.

    Raises:
        UserError: If a value is out of range.
    """

    selectors: str | None = None
    variants: Annotated[str | None, UserPath()] = None
    seeds: str | None = None
    grid: tuple[str, ...] = ()
    baseline: str | None = None
    target: Annotated[float | None, Range()] = None
    cost: str | None = None
    last: Annotated[int | None, Range(1)] = None
    until_decided: bool = False
    decides: str | None = None
    margin: Annotated[float | None, Range(above=0, high=100)] = None
    margin_ratio: Annotated[float | None, Range(above=1, high=10)] = None
    level: Annotated[float | None, Range(0.5, below=1)] = None
    max_seeds: Annotated[int | None, Range(FIRST_LOOK, MOST_SEEDS)] = None
    budget: str | None = None
    each_scenario: bool = False
    mismatch: Mismatch = "refuse"
    pick: Pick | None = None
    max_concurrent: Annotated[int, Range(1)] = 1
    cpus: Annotated[float, Range(above=0)] = 1.0
    gpus: Annotated[float, Range(0)] = 0.0
    memory: Annotated[float | None, Range(above=0)] = None
    address: str | None = None
    retries: Annotated[int, Range(0)] = 2
    name: str | None = None
    folder: Annotated[str, UserPath()] = "comparisons"

    def __post_init__(self) -> None:
        check_settings(self)
        check_gpus(self.gpus)
        check_folder_name("name", self.name)
        check_cost(self.cost)
        if self.decides is not None:
            check_decides(self.decides)
        if self.until_decided and self.margin is not None and self.margin_ratio is not None:
            raise UserError(
                "margin is for the score that decides and margin_ratio for a cost; give one of them, got "
                f"margin {self.margin:g} and margin_ratio {self.margin_ratio:g}."
            )
        if self.until_decided and self.seeds is not None:
            raise UserError(
                "seeds must not be given with until_decided, which runs seeds 1, 2, ... up to max_seeds; "
                f"got {self.seeds}."
            )

    @property
    def resources(self) -> Resources | None:
        """What runs may use on Ray; None where this process executes them."""
        if self.max_concurrent == 1 and self.gpus == 0 and self.address is None:
            return None
        return Resources.of(self)
