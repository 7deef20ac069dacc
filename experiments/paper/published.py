"""The paper's Table I (LRT) and Table II (ListOps): accuracy in %, mean and standard deviation of three runs."""

from typing import Final, NamedTuple

KINDS: Final = {"Full": "full", "Sum": "sum", "Hosvd": "tucker"}  # the paper's models and their aggregators


class Published(NamedTuple):
    """A configuration of the paper: its size, "N par." of one aggregation, and its accuracy in %."""

    state_size: int
    rank: int | None
    parameters: int
    mean: float
    deviation: float


class PaperTable(NamedTuple):
    """A table of the paper: validation for every configuration, test for the best of each kind.

    ``ranks`` lists the ranks that the paper tried for each state size of the Hosvd-LSTM; it prints the best one.
    """

    grid: str
    numeral: str
    name: str
    arity: int
    one_size_column: bool  # Table I has one column of state sizes for all kinds, Table II one for each
    validation: dict[str, tuple[Published, ...]]
    test: dict[str, Published]
    ranks: dict[int, tuple[int, ...]]

    def published(self, kind: str, state_size: int) -> Published | None:
        """Return the row of a kind at a state size, or None.

        >>> LRT.published("Hosvd", 100).parameters
        12820
        """
        return next((row for row in self.validation.get(kind, ()) if row.state_size == state_size), None)


LRT: Final = PaperTable(
    grid="lrt",
    numeral="I",
    name="LRT",
    arity=2,
    one_size_column=True,
    validation={
        "Full": (
            Published(3, None, 48, 57.52, 0.17),
            Published(5, None, 180, 58.03, 0.28),
            Published(10, None, 1210, 84.00, 3.23),
            Published(20, None, 8820, 88.77, 0.12),
            Published(50, None, 130050, 91.72, 0.78),
            Published(100, None, 1020100, 91.86, 0.24),
        ),
        "Sum": (
            Published(3, None, 18, 57.16, 0.25),
            Published(5, None, 50, 57.66, 0.12),
            Published(10, None, 200, 64.79, 7.89),
            Published(20, None, 800, 87.21, 1.13),
            Published(50, None, 5000, 90.92, 0.21),
            Published(100, None, 20000, 91.33, 0.51),
        ),
        "Hosvd": (  # the ranks follow from the numbers of parameters; the text names the last
            Published(10, 7, 588, 76.91, 4.30),
            Published(20, 15, 4440, 86.99, 0.46),
            Published(50, 30, 31830, 90.29, 0.32),
            Published(100, 20, 12820, 91.11, 0.76),
        ),
    },
    test={
        "Full": Published(100, None, 1020100, 91.46, 0.10),
        "Sum": Published(100, None, 20000, 91.03, 0.60),
        "Hosvd": Published(100, 20, 12820, 90.61, 0.89),
    },
    ranks={10: (3, 5, 7), 20: (5, 10, 15), 50: (10, 20, 30), 100: (20, 50, 70)},
)

LISTOPS: Final = PaperTable(
    grid="listops",
    numeral="II",
    name="ListOps",
    arity=5,
    one_size_column=False,
    validation={
        "Full": (
            Published(3, None, 3072, 75.44, 1.18),
            Published(5, None, 38880, 82.34, 0.61),
            Published(7, None, 229376, 82.38, 0.82),
        ),
        "Sum": (
            Published(25, None, 3125, 77.19, 0.81),
            Published(88, None, 38720, 82.16, 0.98),
            Published(214, None, 228980, 83.37, 1.18),
        ),
        "Hosvd": (
            Published(10, 3, 3222, 93.15, 0.61),
            Published(20, 3, 3372, 94.57, 0.70),
            Published(50, 3, 3822, 94.19, 0.30),
        ),
    },
    test={
        "Full": Published(7, None, 229376, 82.02, 0.65),
        "Sum": Published(214, None, 228980, 83.01, 1.06),
        "Hosvd": Published(20, 3, 3372, 94.26, 0.48),
    },
    ranks={10: (3, 5, 7), 20: (3, 5, 7), 50: (3, 5, 7)},
)

PAPER_TABLES: Final = {table.grid: table for table in (LRT, LISTOPS)}
