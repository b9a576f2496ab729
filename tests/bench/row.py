"""What a row of the benchmark is: the same work in three spellings, on a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.bench.trees import Data, data

if TYPE_CHECKING:
    from collections.abc import Callable


class Sides(NamedTuple):
    """The same work by hand, by us and by the peer (None if it can not do it)."""

    floor: Callable[[], Any]
    tdfunc: Callable[[], Any]
    peer: Callable[[], Any] | None


class Case(NamedTuple):
    """One row of the table."""

    operation: str
    tree: str
    target: float | None  # None where the design sets none
    build: Callable[[Data], Sides]

    @property
    def name(self) -> str:
        return f"{self.operation}, {self.tree}"

    def sides(self, *, peer: bool) -> Sides:
        """Return the three calls; without `peer` the third is None."""
        sides = self.build(data(self.tree, peer=peer))
        return sides if peer else sides._replace(peer=None)


def on(
    trees: tuple[str, ...],
    operation: str,
    build: Callable[[Data], Sides],
    *targets: float | None,
) -> list[Case]:
    """Return a case for each of these trees; the last trees are those with targets."""
    unaimed = [None] * (len(trees) - len(targets))
    pairs = zip(trees, [*unaimed, *targets], strict=True)
    return [Case(operation, tree, target, build) for tree, target in pairs]
