import io

import pytest
from rich.console import Console

from greedw_cli.demo_screen import DemoScreen


@pytest.mark.parametrize(("width", "end"), [(72, 72), (80, 80), (200, 80)])
def test_times_of_the_stages_end_in_one_column_within_the_screen(width: int, end: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    screen = DemoScreen(console, ["lab-0"])
    with console.capture() as captured:
        with screen.stage("Starting 4 daemons on this machine ... lab-0 lab-1 lab-2 lab-3"):
            pass
        with screen.stage("Forming a cluster ...") as result:
            result.append("4 members, 11 of 12 links measured")
    lines = captured.get().splitlines()
    assert [len(line) for line in lines] == [end, end]
    assert all(line.endswith(" 0.0 s") for line in lines)
    assert "... 4 members, 11 of 12 links measured " in lines[1]
