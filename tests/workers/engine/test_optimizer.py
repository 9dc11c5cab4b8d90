import pytest

from verl.trainer.config import OptimConfig
from verl.workers.engine.optimizer import Schedule


def lrs(total: int, **options: object) -> list[float]:
    schedule = Schedule(OptimConfig(lr=1.0, **options), total)  # type: ignore[arg-type]
    return [round(schedule.lr(step), 4) for step in range(total)]


def test_warm_up_starts_above_zero_and_reaches_the_peak() -> None:
    assert lrs(6, lr_warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert lrs(4, lr_warmup_steps=0.5) == [0.5, 1.0, 1.0, 1.0]


def test_linear_and_cosine_end_at_the_minimum() -> None:
    assert lrs(5, lr_scheduler_type="linear") == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert lrs(5, lr_scheduler_type="linear", min_lr_ratio=0.2)[-1] == 0.2
    assert lrs(5, lr_scheduler_type="cosine") == [1.0, 0.8536, 0.5, 0.1464, 0.0]
    assert lrs(5, lr_scheduler_type="cosine", lr_warmup_steps=2, min_lr_ratio=0.1) == [
        0.5,
        1.0,
        1.0,
        0.55,
        0.1,
    ]


def test_a_schedule_stays_at_its_end() -> None:
    assert Schedule(OptimConfig(lr=1.0, lr_scheduler_type="cosine", min_lr_ratio=0.1), 5).lr(
        50
    ) == pytest.approx(0.1)


def test_the_configured_total_wins() -> None:
    assert Schedule(OptimConfig(lr=1.0, lr_scheduler_type="linear", total_training_steps=3), 99).lr(2) == 0.0


def test_a_schedule_without_its_total_says_so() -> None:
    for options in ({"lr_scheduler_type": "linear"}, {"lr_warmup_steps": 0.1}):
        with pytest.raises(ValueError, match=r"^optim\.lr_scheduler_type=.*set_total_training_steps"):
            Schedule(OptimConfig(**options)).lr(0)  # type: ignore[arg-type]


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^optim\.lr_scheduler_type='sine'.*cosine"):
        Schedule(OptimConfig(lr_scheduler_type="sine"))
