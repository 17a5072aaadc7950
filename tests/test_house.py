"""The rules of the house that no linter knows, and proof that each of these checks can fail."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES_MAX = 500

PACKAGES = ("greedw_p2p", "daemon/greedw_daemon", "cli/greedw_cli")
IMPURE = ("data", "jobs", "kernels", "models", "optim")
"""Packages of the library that compute; everything else in it is the core."""

INTEGERS_ONLY = ("config.py", "ids.py", "view.py", "log", "plan")
"""Where no float may take part: equal on every host, or two nodes build two trees."""

EXECUTES_DATA = {"cloudpickle", "code", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}
NAMES_THAT_SAY_NOTHING = {
    "base", "common", "helper", "helpers", "manager", "misc", "shared", "stuff", "tools", "util",
    "utils",
}  # fmt: skip
ORDER_DOES_NOT_MATTER = {
    "all", "any", "bool", "frozenset", "len", "max", "min", "set", "sorted", "sum",
}  # fmt: skip

Finding = tuple[int, str]


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def core_files() -> list[Path]:
    library = ROOT / "greedw_p2p"
    return [
        path
        for path in python_files("greedw_p2p")
        if path.relative_to(library).parts[0] not in IMPURE
    ]


def check(files: Iterable[Path], rule: Callable[[ast.Module], Iterator[Finding]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in files
        for line, what in rule(ast.parse(path.read_text(encoding="utf-8")))
    ]


# -- rules -------------------------------------------------------------------------------------


def executes_data(tree: ast.Module) -> Iterator[Finding]:
    """Anything that can turn a peer's or a file's bytes into code."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
                yield node.lineno, f"calls {name}"
                continue
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                yield node.lineno, "allows pickle"
                continue
            case _:
                continue
        yield from (
            (node.lineno, f"imports {module}")
            for module in modules
            if module.partition(".")[0] in EXECUTES_DATA
        )


def unseeded_randomness(tree: ast.Module) -> Iterator[Finding]:
    """Any use of ``random`` but for the class ``random.Random`` with a seed."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="random", names=names):
                for alias in names:
                    if alias.name != "Random":
                        yield node.lineno, f"imports random.{alias.name}"
            case ast.Attribute(value=ast.Name(id="random"), attr=attr) if attr != "Random":
                yield node.lineno, f"uses random.{attr}"
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="random"), attr="Random")
                | ast.Name(id="Random"),
                args=[],
            ):
                yield node.lineno, "makes a Random without a seed"
            case _:
                pass


def depends_on_the_process(tree: ast.Module) -> Iterator[Finding]:
    """Values that differ between two processes that hold equal data."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="hash" | "id" as name)):
                yield node.lineno, f"calls {name}()"
            case _:
                pass


def floats(tree: ast.Module) -> Iterator[Finding]:
    """Float literals, conversions and true division; annotations are let through."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=float(value)):
                yield node.lineno, f"the float {value}"
            case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                yield node.lineno, "true division"
            case ast.Call(func=ast.Name(id="float")):
                yield node.lineno, "a conversion to float"
            case _:
                pass


def iterates_a_set(tree: ast.Module) -> Iterator[Finding]:
    """Iteration over something that is plainly a set, where its order can be seen.

    Knows literals, comprehensions, ``set(...)``, set operators on those, and names that the same
    file binds or annotates as sets. A hint, not a proof: plans are also compared across processes
    with different hash seeds.
    """
    names = set(_names_of_sets(tree))
    harmless = set(_in_order_free_calls(tree))
    for node in ast.walk(tree):
        iterated: list[ast.expr] = []
        match node:
            case ast.For(iter=over):
                iterated = [over]
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() if node not in harmless:
                iterated = [generator.iter for generator in node.generators]
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "next" | "zip" | "map")
            ):
                iterated = node.args
            case ast.Call(func=ast.Attribute(attr="pop", value=over), args=[]):
                iterated = [over]
            case ast.Starred(value=over):
                iterated = [over]
            case _:
                continue
        yield from (
            (over.lineno, f"iterates the set {ast.unparse(over)}")
            for over in iterated
            if _is_set(over, names)
        )


def _names_of_sets(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value) if _is_set(value, set()):
                yield from (ast.unparse(target) for target in targets)
            case ast.AnnAssign(target=target, annotation=annotation) if _says_set(annotation):
                yield ast.unparse(target)
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if _says_set(annotation):
                yield name
            case _:
                pass


def _says_set(annotation: ast.expr) -> bool:
    return re.match(r"(Abstract)?(frozen)?[sS]et\b", ast.unparse(annotation)) is not None


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in names
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub()):
            return _is_set(node.left, names) or _is_set(node.right, names)
        case _:
            return False


def _in_order_free_calls(tree: ast.Module) -> Iterator[ast.expr]:
    """Generators that are the one argument of a call whose result does not show their order."""
    for node in ast.walk(tree):
        match node:
            # With a key, the first of equals wins: then the order shows.
            case ast.Call(func=ast.Name(id=name), args=[only], keywords=keywords) if (
                name in ORDER_DOES_NOT_MATTER and not keywords
            ):
                yield only
            case _:
                pass


# -- the house keeps them ----------------------------------------------------------------------


def test_files_are_short() -> None:
    lengths = {
        path.relative_to(ROOT): path.read_text(encoding="utf-8").count("\n")
        for path in python_files(*PACKAGES, "tests")
    }
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


def test_modules_have_names_that_say_something() -> None:
    names = {path.relative_to(ROOT): path.stem for path in python_files(*PACKAGES)}
    assert [path for path, name in names.items() if name in NAMES_THAT_SAY_NOTHING] == []


def test_nothing_can_turn_bytes_into_code() -> None:
    assert check(python_files(*PACKAGES), executes_data) == []


def test_core_draws_only_from_a_seeded_generator_it_was_given() -> None:
    assert check(core_files(), unseeded_randomness) == []


def test_core_uses_no_value_that_differs_between_processes() -> None:
    assert check(core_files(), depends_on_the_process) == []


def test_core_never_iterates_a_set() -> None:
    assert check(core_files(), iterates_a_set) == []


def test_what_is_agreed_is_computed_in_integers() -> None:
    files = [
        path
        for path in core_files()
        if path.relative_to(ROOT / "greedw_p2p").parts[0] in INTEGERS_ONLY
    ]
    assert len(files) > len(INTEGERS_ONLY)
    assert check(files, floats) == []


def test_nothing_unfinished_is_marked_in_the_code() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        path.relative_to(ROOT)
        for path in python_files(*PACKAGES)
        if marks.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


# -- and the checks can fail -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (executes_data, "import pickle"),
        (executes_data, "from yaml import load"),
        (executes_data, "import concurrent.futures, dill"),
        (executes_data, "eval(text)"),
        (executes_data, "numpy.load(path, allow_pickle=True)"),
        (unseeded_randomness, "random.shuffle(nodes)"),
        (unseeded_randomness, "from random import choice"),
        (unseeded_randomness, "rng = random.Random()"),
        (depends_on_the_process, "key = hash(node)"),
        (depends_on_the_process, "key = id(node)"),
        (floats, "share = units / 2"),
        (floats, "units /= 2"),
        (floats, "rate = 0.3 * old"),
        (floats, "rate = float(old)"),
        (iterates_a_set, "for node in {1, 2}: use(node)"),
        (iterates_a_set, "for node in set(nodes): use(node)"),
        (iterates_a_set, "first = next(iter(set(nodes)))"),
        (iterates_a_set, "rest = set(nodes)\nfor node in rest - used: use(node)"),
        (iterates_a_set, "self.rest: set[int] = make()\nlist(self.rest)"),
        (iterates_a_set, "def plan(nodes: frozenset[int]): return [n for n in nodes]"),
        (iterates_a_set, "best = min((n for n in {1, 2}), key=cost)"),
        (iterates_a_set, "def plan(nodes: set[int]): return (*nodes,)"),
        (iterates_a_set, "def plan(nodes: set[int]): return nodes.pop()"),
    ],
)
def test_breach_of_a_rule_is_found(
    rule: Callable[[ast.Module], Iterator[Finding]], source: str
) -> None:
    assert list(rule(ast.parse(source))) != []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (executes_data, "evaluate(text)\nimport codecs"),
        (unseeded_randomness, "def node(rng: random.Random): return rng.random()"),
        (unseeded_randomness, "rng = random.Random(seed)"),
        (depends_on_the_process, "entry.id()"),
        (floats, "share: float = units // 2"),
        (iterates_a_set, "for node in sorted(set(nodes)): use(node)"),
        (iterates_a_set, "least = min((cost[n], n) for n in {1, 2})"),
        (iterates_a_set, "known = {n for n in set(nodes)}"),
        (iterates_a_set, "queue: list[int] = []\nqueue.pop()"),
    ],
)
def test_keeping_a_rule_is_no_breach(
    rule: Callable[[ast.Module], Iterator[Finding]], source: str
) -> None:
    assert list(rule(ast.parse(source))) == []
