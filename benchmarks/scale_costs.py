"""Memory, wire and work of a private step, by formulas.

A step on `chips` chips, each with `batch` examples of `lookups` rows out of a
table of `rows` rows of `width` numbers, and with dense layers. *Replicated* is
what the library does: every chip holds the table, gets the ids and rows of all
chips, and releases by itself what all others release. *Sharded* is not built:
every chip would hold a part of the rows, get what concerns these, and release
them alone.

There is one function for each mechanism, in `MECHANISMS`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.mechanisms.ball_threshold import certain_threshold
from tf_sparse_dp.mechanisms.noisy_tables import Layout
from tf_sparse_dp.mechanisms.tail_sampling import expected_hits, hit_capacity

# Bytes. Ids are int64, as tables beyond 2^31 rows need them.
FLOAT, DOUBLE, ID = 4, 8, 8
SAID = 6 * ID  # What each replica says of its part of the batch.
KEY = 2 * ID

# As the compiler for TPUs reports it: rows are filled up to LANES numbers, and
# an example's lookups to a multiple of SUBLANES. Held are NOISE bytes for a
# number of noise while it is drawn, CLIPPED copies of a row that is clipped,
# RELEASED of one that is released, and SENSED of a table that is recovered.
# Laplace noise takes twice the random words of Gaussian noise.
LANES, SUBLANES = 128, 8
NOISE, CLIPPED, RELEASED, SENSED = 32, 13, 4, 65

UNTOUCHED = 10.0  # Rows of noise that Threshold lets through.
_MOST_SENSED = 2**30  # Rows; CompressedSensing refuses more.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Sizes of a step.

    Attributes:
      rows: Of the table.
      width: Of a row.
      batch: Examples on one chip.
      lookups: Rows that an example looks up.
      dense: Parameters of dense layers.
      chips: How many there are.
      sharded: Whether a chip holds its part of the table only: not built.
      slots: Numbers that the inner optimizer keeps for each parameter.
      chosen: Rows that `FrequencySelection` trains.
    """

    rows: int
    width: int = 64
    batch: int = 1024
    lookups: int = 26
    dense: int = 1_023_489
    chips: int = 1
    sharded: bool = False
    slots: int = 0
    chosen: int = 100_000

    @property
    def own(self) -> int:
        """Lookups on one chip."""
        return self.batch * self.lookups

    @property
    def gathered(self) -> int:
        """Rows that reach the release on one chip; on average if sharded."""
        return self.own if self.sharded else self.own * self.chips

    @property
    def held(self) -> int:
        """Rows of the table on one chip."""
        return math.ceil(self.rows / self.chips) if self.sharded else self.rows

    @property
    def lanes(self) -> int:
        """Numbers for which a row takes memory."""
        return LANES * math.ceil(self.width / LANES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step takes, on one chip.

    Attributes:
      memory: Bytes that are held from step to step, for each purpose.
      passing: Bytes of each phase of a step, which follow one another.
      sent: Bytes that a chip gives to collective operations: to be put one
        after another, and to be added up.
      work: For each operation how many units of it.
      refused: Why the library refuses it, if it does.
    """

    memory: Mapping[str, float]
    passing: Mapping[str, float]
    sent: tuple[float, float]
    work: Mapping[str, float]
    refused: str = ""

    @property
    def bytes(self) -> float:
        """Memory for all purposes, in the phase that takes most."""
        return sum(self.memory.values()) + max(self.passing.values())


def received(cost: Cost, setup: Setup) -> float:
    """Bytes that reach a chip in a step.

    Of what is put one after another each chip gets the others' parts; of what
    is added up, by a ring, twice its size but for its own share. Sharded
    tables: ids and gradients go to where rows are, and rows come from there.
    """
    others = (setup.chips - 1) / setup.chips
    joined, added = cost.sent
    if setup.sharded:
        read = setup.own * (FLOAT * setup.width + ID)
        return others * (read + joined + 2 * added)
    return (setup.chips - 1) * joined + 2 * others * added


def ordinary(setup: Setup) -> dict[str, float]:
    """Work of a step without privacy that reads and updates rows, with SGD."""
    return {
        "product": setup.batch * setup.dense,
        "gather": setup.own * setup.width,
        "update": setup.gathered * setup.width,
    }


def ratio(cost: Cost, setup: Setup, ratios: Mapping[str, float]) -> float:
    """A private step's work over that of a step without privacy."""
    known = {**ratios, "update": 1 - ratios["gather"]}
    private, plain = (
        sum(known[name] * units for name, units in work.items())
        for work in (cost.work, ordinary(setup))
    )
    return private / plain


def gaussian(setup: Setup) -> Cost:
    """Noise on all rows."""
    return _dense(setup, "gaussian")


def laplace(setup: Setup) -> Cost:
    """Noise on all rows, of as many random words again."""
    return _dense(setup, "laplace", noise=2 * NOISE)


def threshold(setup: Setup) -> Cost:
    """Noise on touched rows, and about 10 others."""
    hits = hit_capacity(setup.rows, UNTOUCHED / setup.rows, RELEASE_FAILURE / 2)
    return _sparse(setup, "threshold", hits=hits)


def projection(setup: Setup) -> Cost:
    """Noise on touched rows, and others until the ball is full."""
    layout = Layout((setup.rows, setup.width), "rows", "gaussian", 1.0)
    units = setup.batch * setup.chips
    bound = certain_threshold(
        [layout.norms], [setup.rows], units * math.sqrt(setup.lookups)
    )
    if not layout.sparse_above(bound):
        return _dense(setup, "gaussian")
    share = expected_hits(layout.norms, setup.rows, bound) / setup.rows
    hits = hit_capacity(setup.rows, share, RELEASE_FAILURE / 2)
    return _sparse(setup, "threshold", hits=hits)


def partition_selection(setup: Setup) -> Cost:
    """Noise on touched rows and their counts: a float64 and an id each."""
    hits = hit_capacity(setup.rows, UNTOUCHED / setup.rows, RELEASE_FAILURE / 2)
    return _sparse(
        setup, "selection", hits=hits, more=DOUBLE + ID, clip="counted lookup"
    )


def frequency_selection(setup: Setup) -> Cost:
    """Noise on rows that were chosen once."""
    chosen = min(setup.chosen, setup.rows)
    chosen = math.ceil(chosen / setup.chips) if setup.sharded else chosen
    noise = chosen * setup.width
    return Cost(
        memory=_state(setup),
        passing=_phases(setup, NOISE * noise, setup.gathered),
        sent=_sent(setup),
        work=_private(setup)
        | {
            "chosen": setup.gathered * setup.width,
            "gaussian": setup.dense + noise,
            "update": noise,
        },
    )


def compressed_sensing(setup: Setup) -> Cost:
    """Noise on a sketch, from which the whole table is recovered."""
    count = measurements(setup)
    if count is None:
        return _dense(setup, "gaussian")
    # Transforms are of a power of two rows, 7 of its bits at a time.
    bits = (setup.rows - 1).bit_length()
    numbers = 2**bits * setup.width
    work = _private(setup) | {
        "sensed": numbers * math.ceil(bits / 7) / 2,
        "update": setup.rows * setup.width,
    }
    del work["clipped lookup"]
    return Cost(
        memory=_state(setup),
        passing={
            "clipping": _clipping(setup),
            "recovery": SENSED * FLOAT * numbers
            + 2 * DOUBLE * count * setup.lanes,
        },
        sent=(SAID, KEY + FLOAT * setup.dense + DOUBLE * count * setup.width),
        work=work,
        refused="more than 2^30 rows" if setup.rows > _MOST_SENSED else "",
    )


def lazy_embedding(setup: Setup) -> Cost:
    """Noise on rows that are read, and four bytes a row to know of it."""
    drawn = setup.own * setup.width
    return Cost(
        memory=_state(setup) | {"last noise": FLOAT * setup.held},
        passing=_phases(setup, NOISE * drawn, setup.gathered),
        sent=_sent(setup),
        work=_private(setup)
        | {"lazy": drawn, "update": setup.gathered * setup.width},
        refused="more than one replica" if setup.chips > 1 else "",
    )


MECHANISMS: dict[str, Callable[[Setup], Cost]] = {
    "Gaussian": gaussian,
    "Laplace": laplace,
    "Threshold": threshold,
    "Projection": projection,
    "PartitionSelection": partition_selection,
    "FrequencySelection": frequency_selection,
    "CompressedSensing": compressed_sensing,
    "LazyEmbedding": lazy_embedding,
}


def measurements(setup: Setup) -> int | None:
    """Rows of the sketch at noise multiplier 1; None for none."""
    spread = setup.width - 1 + math.log(setup.rows / setup.lookups)
    each = 2 * math.sqrt(2 * setup.lookups * spread) / setup.width
    count = math.ceil(each * setup.batch * setup.chips)
    return None if setup.rows < count * math.log(count) ** 2 else count


def _padded(setup: Setup, rows: float) -> float:
    """Bytes of so many rows."""
    return FLOAT * rows * setup.lanes


def _state(setup: Setup) -> dict[str, float]:
    """What all mechanisms hold."""
    numbers = setup.held * setup.width
    return {
        "table": FLOAT * numbers,
        "slots": FLOAT * setup.slots * numbers,
        "dense layers": FLOAT * (3 + setup.slots) * setup.dense,
    }


def _clipping(setup: Setup) -> float:
    """Bytes while a chip's own rows are clipped."""
    lookups = SUBLANES * math.ceil(setup.lookups / SUBLANES)
    return CLIPPED * _padded(setup, setup.batch * lookups)


def _phases(setup: Setup, noise: float, released: float) -> dict[str, float]:
    """Bytes while rows are clipped, get their noise, and update the table."""
    rows = RELEASED * _padded(setup, released)
    if setup.chips > 1:
        rows += setup.gathered * (FLOAT * setup.lanes + ID)
    return {
        "clipping": _clipping(setup),
        "noise": rows + noise,
        "update": rows + _padded(setup, setup.held),
    }


def _sent(setup: Setup, more: int = 0) -> tuple[float, float]:
    """Ids and rows of a chip's lookups, and the sums of dense layers."""
    each = FLOAT * setup.width + ID + more
    return setup.own * each + SAID, FLOAT * setup.dense + KEY


def _private(setup: Setup) -> dict[str, float]:
    """Work up to the sums, and noise on dense layers."""
    products = setup.batch * setup.dense
    numbers = setup.own * setup.width
    return {
        "product": products,
        "clipped product": products,
        "gather": numbers,
        "clipped lookup": numbers,
        "gaussian": setup.dense,
    }


def _dense(setup: Setup, family: str, noise: int = NOISE) -> Cost:
    """Noise on all rows; gathered ones are added to it."""
    numbers = setup.held * setup.width
    work = _private(setup)
    del work["gaussian"]
    return Cost(
        memory=_state(setup),
        passing=_phases(setup, noise * numbers, 0),
        sent=_sent(setup),
        work=work
        | {
            family: numbers + setup.dense,
            "update": setup.gathered * setup.width,
        },
    )


def _sparse(
    setup: Setup,
    release: str,
    *,
    hits: float,
    more: int = 0,
    clip: str = "clipped lookup",
) -> Cost:
    """Noise on touched rows and on some others, of which there are `hits`."""
    if setup.sharded:
        hits = math.ceil(hits / setup.chips)
    released = setup.gathered + hits
    work = _private(setup)
    work[clip] = work.pop("clipped lookup")
    return Cost(
        memory=_state(setup),
        passing=_phases(setup, NOISE * released * setup.width, released),
        sent=_sent(setup, more),
        work=work
        | {
            release: setup.gathered * setup.width,
            "hit": hits * setup.width,
            "update": released * setup.width,
        },
    )
