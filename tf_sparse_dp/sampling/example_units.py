"""What samplings have in common that draw examples one by one."""

from __future__ import annotations


class ExamplesAsUnits:
    """Every example is a unit, which is added or removed; steps are charged."""

    num_examples: int

    @property
    def num_units(self) -> int:
        """How many are protected: the number of examples."""
        return self.num_examples

    @property
    def examples_per_unit(self) -> int:
        """Every example is a unit of its own."""
        return 1

    @property
    def composition_unit(self) -> str:
        """What is charged once."""
        return "step"

    @property
    def neighbouring_relation(self) -> str:
        """Which data sets must look alike."""
        return "add_or_remove_one"

    @property
    def requires_validity(self) -> bool:
        """Whether batches must carry the validity column."""
        return True

    @property
    def unit(self) -> str:
        """Whose presence is protected."""
        return "example"
