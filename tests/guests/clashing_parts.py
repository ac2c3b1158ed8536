"""A term from outside whose option has another meaning than that of a term inside."""

from dataclasses import dataclass

from fedscal.extend import Average, Method, option, register_method


@dataclass(frozen=True)
class Crowd:
    """A term in name only."""

    neighbours: float = option(0.5, "share of the images that are neighbours", low=0, high=1)


register_method("crowd", Method("Crowd", Average, (Crowd,), "", ""))  # type: ignore[arg-type]
