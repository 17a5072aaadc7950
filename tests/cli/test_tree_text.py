import re

from hypothesis import given
from hypothesis import strategies as st

from greedw_cli.tree_text import children_of, draw, one_line


@st.composite
def parent_maps(draw_from: st.DrawFn) -> dict[str, str | None]:
    parents: dict[str, str | None] = {"n0": None}
    for number in range(1, draw_from(st.integers(1, 30))):
        parents[f"n{number}"] = f"n{draw_from(st.integers(0, number - 1))}"
    return parents


trees = parent_maps()


def test_drawing_shows_branches_to_the_right_deep_ones_first() -> None:
    parents = {"lab-0": None, "lab-2": "lab-0", "lab-1": "lab-0", "lab-3": "lab-1"}
    assert draw("lab-0", children_of(parents)) == [
        "lab-0 ─┬─ lab-1 ─── lab-3",
        "       └─ lab-2",
    ]


def test_drawing_keeps_the_line_of_an_open_branch() -> None:
    parents = {"a": None, "b": "a", "c": "a", "d": "b", "e": "b"}
    assert draw("a", children_of(parents)) == [
        "a ─┬─ b ─┬─ d",
        "   │     └─ e",
        "   └─ c",
    ]


@given(trees)
def test_drawing_has_each_node_once(parents: dict[str, str | None]) -> None:
    words = re.findall(r"n\d+", " ".join(draw("n0", children_of(parents))))
    assert sorted(words) == sorted(parents)


@given(trees)
def test_drawing_has_a_line_for_each_leaf(parents: dict[str, str | None]) -> None:
    children = children_of(parents)
    assert len(draw("n0", children)) == sum(1 for node in parents if node not in children)


def test_long_chain_is_listed_instead_of_drawn() -> None:
    parents: dict[str, str | None] = {"n000": None}
    parents |= {f"n{i:03}": f"n{i - 1:03}" for i in range(1, 1000)}
    lines = draw("n000", children_of(parents))
    assert len(lines) == 1000
    assert lines[1] == "n001 below n000"


def test_one_line_gives_paths_and_groups_leaves() -> None:
    parents = {"attic": None, "lab-a": "attic", "pi-2": "attic", "pi-1": "lab-a", "lab-b": "lab-a"}
    assert (
        one_line("attic", children_of(parents), 16) == "attic > lab-a > lab-b, pi-1; attic > pi-2"
    )


def test_one_line_gives_only_the_shape_of_a_large_tree() -> None:
    parents = {f"n{i}": None if i == 0 else f"n{i // 2}" for i in range(100)}
    text = one_line("n0", children_of(parents), 16)
    assert text == "n0 with 1 below it, 100 nodes, depth 7"
    assert len(text) < 80


@given(trees)
def test_one_line_names_every_node(parents: dict[str, str | None]) -> None:
    assert set(re.findall(r"n\d+", one_line("n0", children_of(parents), 100))) == set(parents)
