from __future__ import annotations

import msgspec
import pytest

from tokenloom_engine.messages import ModelInfo
from tokenloom_router.config import RouterConfig
from tokenloom_router.errors import EngineStartError
from tokenloom_router.limits import Limits


def test_open_limits_come_from_the_model(model: ModelInfo) -> None:
    limits = Limits.resolve(RouterConfig(), model)
    assert (limits.max_total_tokens, limits.max_input_tokens) == (2048, 2047)
    small = msgspec.structs.replace(model, max_batch_total_tokens=100)
    limits = Limits.resolve(RouterConfig(), small)
    assert (limits.max_total_tokens, limits.max_input_tokens) == (100, 99)


def test_given_limits_stand(model: ModelInfo) -> None:
    limits = Limits.resolve(RouterConfig(max_total_tokens=50, max_input_tokens=20), model)
    assert (limits.max_total_tokens, limits.max_input_tokens) == (50, 20)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            RouterConfig(max_total_tokens=5000),
            "`max_total_tokens` must be <= `max_batch_total_tokens`. Given: 5000 and 4096",
        ),
        (
            RouterConfig(max_total_tokens=3000),
            "`max_total_tokens` must be <= the model's context, which its config.json says. "
            "Given: 3000 and 2048. `rope_scaling` there, or `rope_factor` here, lengthens it",
        ),
        (
            RouterConfig(max_total_tokens=50, max_input_tokens=50),
            "`max_input_tokens` must be > 0 and < `max_total_tokens`. Given: 50 and 50",
        ),
        (
            RouterConfig(max_input_tokens=2048),
            "`max_input_tokens` must be > 0 and < `max_total_tokens`. Given: 2048 and 2048",
        ),
    ],
)
def test_limits_that_the_model_cannot_hold(
    model: ModelInfo, config: RouterConfig, message: str
) -> None:
    with pytest.raises(EngineStartError) as raised:
        Limits.resolve(config, model)
    assert str(raised.value) == message
