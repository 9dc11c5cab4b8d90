"""What a run says when a signal arrives."""

import signal

import pytest

from verl.trainer.ppo.interrupt import SIGNALS, StoppedAtOnce, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("saves", [True, False])
def test_a_signal_promises_a_checkpoint_only_where_one_is_written(
    number: signal.Signals, saves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with StopRequest(saves=saves) as stop:
        signal.raise_signal(number)
        assert stop.number == number
        (line,) = caplog.messages
        with pytest.raises(StoppedAtOnce) as at_once:
            signal.raise_signal(number)
    assert ("checkpoint" in line) is saves and ("checkpoint" in str(at_once.value)) is saves
    assert line.startswith(f"{number.name}: ") and line.endswith("; repeat to stop at once")
