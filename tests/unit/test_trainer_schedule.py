"""The learning rate over the run."""

from __future__ import annotations

import pytest

from headrace.config.trainer import OptimConfig
from headrace.trainer.schedule import learning_rate_share


def shares(shape: str, *, total: int = 11, warmup: int = 0, min_ratio: float = 0.1) -> list[float]:
    return [
        learning_rate_share(
            i,
            total=total,
            warmup=warmup,
            shape=shape,  # type: ignore[arg-type]
            min_ratio=min_ratio,
        )
        for i in range(total)
    ]


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_rate_falls_from_its_peak_to_its_minimum_in_the_last_update(shape: str) -> None:
    found = shares(shape)
    assert found[0] == pytest.approx(1.0)
    assert found[5] == pytest.approx(0.55)
    assert found[10] == pytest.approx(0.1)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_shape_alone_lets_the_rate_fall_to_nothing(shape: str) -> None:
    optim = OptimConfig.model_validate({"lr_schedule": shape})
    assert optim.end_ratio == 0
    assert shares(shape, min_ratio=optim.end_ratio)[-1] == pytest.approx(0)
    assert OptimConfig.model_validate({"lr_schedule": shape, "lr_min_ratio": 0.3}).end_ratio == 0.3
    assert OptimConfig().end_ratio == 1


def test_a_constant_rate_does_not_fall() -> None:
    assert shares("constant") == [1.0] * 11


def test_the_rate_rises_before_it_falls() -> None:
    found = shares("linear", warmup=4)
    assert found[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert found[-1] == pytest.approx(0.1)


def test_a_run_of_one_update_uses_the_peak() -> None:
    assert shares("cosine", total=1) == [1.0]
