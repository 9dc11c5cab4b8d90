"""A person sees one line a step, a bar on a terminal, and the change at the end."""

import io

from rich.console import Console

from verl.utils.accuracy import Estimate
from verl.utils.console import (
    StepDisplay,
    accuracy_table,
    before_after_table,
    format_seconds,
    headline_values,
    print_table,
)


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_every_step_is_one_plain_line() -> None:
    console, clock = plain_console(), Clock()
    display = StepDisplay(40, console=console, clock=clock)
    display.update(0, {"val-core/gsm8k/acc/mean@4": 0.25})
    clock.now = 8.0
    display.update(
        2, {"critic/score/mean": 0.4123, "perf/throughput": 1234.6, "timing_s/step": 4.0, "actor/lr": 1e-6}
    )
    display.finish()
    assert written(console).splitlines() == [
        "step  0/40  acc 25.0%",
        "step  2/40  reward 0.412  1235 tok/s  4.0 s  ETA 2:32",
    ]


def test_eta_of_a_resumed_run_counts_its_own_steps_only() -> None:
    console, clock = plain_console(), Clock()
    display = StepDisplay(12, start_step=10, console=console, clock=clock)
    clock.now = 5.0
    display.update(11, {})
    display.update(12, {})
    assert written(console).splitlines() == ["step 11/12  ETA 0:05", "step 12/12"]


def test_an_unknown_number_of_steps_has_no_share_and_no_eta() -> None:
    console = plain_console()
    StepDisplay(0, console=console, clock=Clock()).update(3, {"critic/score/mean": 1.0})
    assert written(console) == "step 3  reward 1.000\n"


def test_a_narrow_console_does_not_break_the_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=20)
    StepDisplay(2, console=console, clock=Clock()).update(
        1, {"critic/score/mean": 1.0, "perf/throughput": 1e6}
    )
    assert len(written(console).splitlines()) == 1


def test_a_terminal_gets_the_bar_and_the_cursor_back() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    display = StepDisplay(4, console=console)
    display.update(1, {"critic/score/mean": 0.5})
    display.finish()
    display.finish()
    text = written(console)
    assert "1/4" in text and "reward 0.500" in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_the_first_matching_key_is_the_headline() -> None:
    data = {
        "val-core/z/reward": 0.1,
        "val-core/z/acc/mean@1": 0.5,
        "critic/rewards/mean": 0.2,
        "critic/score/mean": 0.3,
    }
    assert headline_values(data) == ["reward 0.300", "acc 50.0%"]


def test_seconds_read_as_a_clock() -> None:
    assert [format_seconds(s) for s in (0, 59.6, 3661, -3)] == ["0:00", "1:00", "1:01:01", "0:00"]


def test_table_shows_the_change_in_points_and_names_a_row_once() -> None:
    console = plain_console()
    before, after = Estimate(0.25, 0.2, 0.3, 50), Estimate(0.625, 0.5, 0.7, 50)
    print_table(
        before_after_table(
            [
                {"name": "team", "metric": "avg@4", "before": before, "after": after},
                {"name": "team", "metric": "pass@4", "before": None, "after": after},
            ]
        ),
        console,
    )
    text = written(console)
    assert "25.0% [20.0, 30.0]" in text and "62.5% [50.0, 70.0]" in text and "+37.5" in text
    assert text.count("team") == 1


def test_the_table_of_an_evaluation_names_the_step_alone() -> None:
    console = plain_console()
    estimate = Estimate(0.25, 0.2, 0.3, 50)
    print_table(
        accuracy_table([{"name": "team", "metric": "avg@4", "before": estimate, "after": None}], 3), console
    )
    text = written(console)
    assert "step 3" in text and "25.0% [20.0, 30.0]" in text
    assert "before" not in text and "after" not in text


def test_a_table_without_rows_is_not_printed() -> None:
    console = plain_console()
    print_table(before_after_table([]), console)
    assert not written(console)
