import os
import signal
import sys

import pytest

from greedw_cli.interruptions import Interrupted, Interruptions


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_first_signal_raises_and_names_the_exit_code(number: signal.Signals, code: int) -> None:
    with Interruptions(hurry=lambda: None) as interruptions:
        with pytest.raises(Interrupted):
            send(number)
        assert interruptions.exit_code == code


def test_signal_inside_a_held_block_raises_at_its_end() -> None:
    reached: list[int] = []

    def block(interruptions: Interruptions) -> None:
        with interruptions.held():
            send(signal.SIGTERM)
            reached.append(1)

    with Interruptions(hurry=lambda: None) as interruptions, pytest.raises(Interrupted):
        block(interruptions)
    assert reached


def test_exception_that_python_dropped_is_raised_again_by_the_next_held_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[object] = []

    def note(lost: "sys.UnraisableHookArgs") -> None:
        dropped.append(lost.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", note)

    class Finalised:
        def __del__(self) -> None:
            send(signal.SIGINT)

    with Interruptions(hurry=lambda: None) as interruptions:
        Finalised()
        assert dropped == [Interrupted]
        with pytest.raises(Interrupted), interruptions.held():
            pass


def test_later_signals_only_hurry() -> None:
    hurried: list[int] = []
    with Interruptions(hurry=lambda: hurried.append(1)) as interruptions:
        with pytest.raises(Interrupted):
            send(signal.SIGINT)
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert interruptions.exit_code == 130
    assert len(hurried) == 2


def test_signal_during_the_clean_up_is_remembered_and_does_not_raise() -> None:
    with Interruptions(hurry=lambda: None) as interruptions:
        interruptions.stop_raising()
        send(signal.SIGINT)
        assert interruptions.exit_code == 130


def test_handlers_are_those_of_before_afterwards() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interruptions(hurry=lambda: None):
        assert signal.getsignal(signal.SIGTERM) not in before
    after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before
