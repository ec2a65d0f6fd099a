"""Who takes part, by framework; needs none of them.

The modules that set contenders up say what each of them is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

# What a step does to rows that no example of its batch looks up.
NOTHING, NOISE, SOMETIMES = "nothing", "noise", "sometimes noise"
# The cheapest step without privacy, in every framework.
NOT_PRIVATE = "not private"
CLIPPING = "clipping alone"


@dataclasses.dataclass(frozen=True)
class Framework:
    """A process's contenders.

    Attributes:
      lane: The environment under `.lanes`; none for the project's own.
      module: What sets contenders up.
      bases: Steps without privacy.
      private: Private steps, and what they do to rows that nobody looked up.
      slow: Those that may take minutes or all memory.
      shown: Those that have a line in the plot.
      of_many_tables: Those that differ from others only on models with many
        tables.
    """

    lane: str | None
    module: str
    bases: tuple[str, ...]
    private: Mapping[str, str]
    slow: tuple[str, ...]
    shown: tuple[str, ...]
    of_many_tables: tuple[str, ...] = ()

    def on(self, model: str) -> Framework:
        """With those that take part on a model."""
        if model == "dlrm":
            return self
        others = self.of_many_tables
        return dataclasses.replace(
            self,
            bases=tuple(name for name in self.bases if name not in others),
            private={k: v for k, v in self.private.items() if k not in others},
        )

    @property
    def effects(self) -> dict[str, str]:
        return {**dict.fromkeys(self.bases, NOTHING), **self.private}


FRAMEWORKS = {
    "tf_sparse_dp": Framework(
        lane=None,
        module="benchmarks.peers.ours",
        bases=(NOT_PRIVATE, "keras Embedding"),
        private={
            "lazy noise": NOISE,
            "lazy noise, 26 tables": NOISE,
            CLIPPING: NOTHING,
            "projection": SOMETIMES,
            "threshold": SOMETIMES,
            "selection": SOMETIMES,
            "dense noise": NOISE,
        },
        slow=("dense noise",),
        shown=("lazy noise", "projection", "threshold", "dense noise"),
        of_many_tables=("lazy noise, 26 tables",),
    ),
    "TF-Privacy": Framework(
        lane="tf_privacy",
        module="benchmarks.peers.with_tf_privacy",
        bases=(NOT_PRIVATE, "keras SGD"),
        private={
            "fast clipping": NOISE,
            CLIPPING: NOTHING,
            "sparse optimizer": NOISE,
        },
        slow=("sparse optimizer",),
        shown=("fast clipping", "sparse optimizer"),
    ),
    "Opacus": Framework(
        lane="opacus",
        module="benchmarks.peers.with_opacus",
        bases=(NOT_PRIVATE, "torch Embedding"),
        private={
            "ghost clipping": NOISE,
            CLIPPING: NOTHING,
            "gradients of examples": NOISE,
        },
        slow=("gradients of examples",),
        shown=("ghost clipping",),
    ),
    "jax_privacy": Framework(
        lane="jax_privacy",
        module="benchmarks.peers.with_jax_privacy",
        bases=(NOT_PRIVATE, "jax grad"),
        private={"clipped_grad": NOISE},
        slow=("clipped_grad",),
        shown=("clipped_grad",),
    ),
}
