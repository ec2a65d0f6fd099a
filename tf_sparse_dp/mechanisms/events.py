"""Whether a mechanism costs what its noise multiplier says."""

from __future__ import annotations

import dp_accounting

from tf_sparse_dp.mechanisms.interface import Mechanism


def check_event(mechanism: Mechanism) -> None:
    """Refuses a mechanism that costs more than noise of its multiplier.

    What accounts for training, or for a mean, knows the noise multiplier and
    the family of the noise alone.

    Raises:
      ValueError: If the mechanism's event is another one.
    """
    event = mechanism.event(1.0)
    if mechanism.noise_family == "laplace":
        known = event == dp_accounting.LaplaceDpEvent(1.0)
    else:
        inverse_variance = _inverse_variance(event)
        known = inverse_variance is not None and inverse_variance < 1 + 1e-9
    if not known:
        raise ValueError(
            f"{mechanism!r} has the event {event!r} at a noise multiplier of "
            "1; expected one of Gaussian or Laplace noise with that "
            "multiplier. Account for it by other means, or choose another "
            "mechanism."
        )


def _inverse_variance(event: dp_accounting.DpEvent) -> float | None:
    """Of the one Gaussian that Gaussians together are; None for others."""
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return float(event.noise_multiplier) ** -2
    if not isinstance(event, dp_accounting.ComposedDpEvent):
        return None
    parts = [_inverse_variance(part) for part in event.events]
    return None if None in parts else sum(parts)  # type: ignore[arg-type]
