import io
from collections.abc import Callable

import pytest
from rich.console import Console

from greedw_cli.pace import Pace
from greedw_cli.progress import Reporter, round_bar
from greedw_p2p.node.status import JobStatus

Make = Callable[..., JobStatus]


@pytest.mark.parametrize("width", [60, 77, 100])
@pytest.mark.parametrize(
    ("rounds", "loss", "left_s"),
    [(310, 0.21, 4.0), (12_500, 0.043, 4000.0), (999_999, 1.5e30, 400_000.0)],
)
def test_bar_is_one_line_within_the_width_with_every_figure(
    width: int, rounds: int, loss: float, left_s: float, make_job: Make
) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        job = make_job(round=rounds - 1, rounds=rounds, loss=loss)
        console.print(round_bar(job, left_s, width))
    (line,) = captured.get().splitlines()
    assert len(line.rstrip()) <= width
    if width >= 77:
        for part in (f"{rounds:,}", " left", "loss ", "accuracy 94.1 %"):
            assert part in line
    if rounds <= 12_500 and width >= 77:
        assert "━" in line


def test_reporter_on_a_terminal_leaves_no_empty_line_where_it_showed_nothing() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with console.capture() as captured, Reporter(console):
        pass
    assert captured.get() == ""


def test_reporter_on_a_terminal_ends_with_the_newest_line(make_job: Make) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with console.capture() as captured, Reporter(console) as reporter:
        for number in range(1, 4):
            reporter.show(make_job(round=number), Pace(), float(number))
    shown = captured.get()
    assert shown.count("\n") == 1
    assert "round 3/12,500" in shown.rpartition("\x1b[2K")[2]
