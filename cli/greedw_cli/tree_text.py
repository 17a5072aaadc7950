"""Trees in text: drawn over several lines, and as one line for ``greedw status``."""

from collections.abc import Mapping, Sequence
from typing import Final

_DRAWN_DEPTH_MAX: Final = 24
"""Levels beyond which a drawing is wider than any screen; a list of parents is given instead."""

Children = Mapping[str, Sequence[str]]
"""Names of each node's children; a node that is missing has none."""


def children_of(parents: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Turn node -> parent into parent -> children, in the order of the names."""
    children: dict[str, list[str]] = {}
    for node in sorted(parents):
        parent = parents[node]
        if parent is not None and parent != node:
            children.setdefault(parent, []).append(node)
    return children


def draw(root: str, children: Children) -> list[str]:
    """Return the lines of a drawing that grows to the right, deep branches first."""
    depths = _depths(root, children)
    if depths[root] > _DRAWN_DEPTH_MAX:
        return [root, *(f"{child} below {node}" for node in children for child in children[node])]
    return _draw(root, children, depths)


def one_line(root: str, children: Children, nodes_max: int) -> str:
    """Return paths as ``a > b > c, d; a > e``; beyond ``nodes_max`` nodes only the shape."""
    depths = _depths(root, children)
    if len(depths) > nodes_max:
        below = len(children.get(root, ()))
        return f"{root} with {below} below it, {len(depths)} nodes, depth {depths[root]}"
    return "; ".join(_paths((root,), children))


def _paths(path: tuple[str, ...], children: Children) -> list[str]:
    below = children.get(path[-1], ())
    inner = [child for child in below if children.get(child)]
    leaves = [child for child in below if not children.get(child)]
    lines = [line for child in inner for line in _paths((*path, child), children)]
    if leaves or not below:
        lines.append(" > ".join((*path, ", ".join(leaves)) if leaves else path))
    return lines


def _depths(root: str, children: Children) -> dict[str, int]:
    """Return how many levels each node has below it; iterative, because chains can be long."""
    order = [root]
    for node in order:
        order.extend(children.get(node, ()))
    depths: dict[str, int] = {}
    for node in reversed(order):
        depths[node] = max((depths[child] + 1 for child in children.get(node, ())), default=0)
    return depths


def _draw(node: str, children: Children, depths: Mapping[str, int]) -> list[str]:
    below = sorted(children.get(node, ()), key=lambda child: (-depths[child], child))
    if not below:
        return [node]
    margin = " " * len(node)
    lines: list[str] = []
    for position, child in enumerate(below):
        last = position == len(below) - 1
        if position == 0:
            first = f"{node} ─{'─' if last else '┬'}─ "
        else:
            first = f"{margin}  {'└' if last else '├'}─ "
        rest = f"{margin}  {' ' if last else '│'}  "
        block = _draw(child, children, depths)
        lines.append(first + block[0])
        lines.extend(rest + line for line in block[1:])
    return lines
