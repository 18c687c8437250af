"""Makes what scores, as the configuration wants it. Imports only what that kind needs."""

from __future__ import annotations

from headrace.config.rollout import RewardConfig
from headrace.errors import UsageError
from headrace.rollout.rewards.access import check
from headrace.rollout.rewards.base import Rewards
from headrace.rollout.rewards.functions import RewardSpec, RewardUnusableError, make_scorer
from headrace.rpc.waits import Waits


def make_rewards(config: RewardConfig, waits: Waits) -> Rewards:
    """Make it, not started yet.

    Raises:
        UsageError: Its packages are missing.

    """
    if config.kind == "http":
        try:
            from headrace.rollout.rewards.remote import HttpRewards
        except ImportError as error:
            raise _missing(error) from error
        return HttpRewards(config, waits=waits)
    from headrace.rollout.rewards.pool import RewardPool

    return RewardPool(config)


def check_rewards(config: RewardConfig) -> None:
    """See here and now whether it could be used.

    Raises:
        UsageError: A function, a package or a file is missing.

    """
    if config.kind == "http":
        try:
            import httpx  # noqa: F401 (whether it is there)
        except ImportError as error:
            raise _missing(error) from error
        check(config)
        return
    try:
        make_scorer(RewardSpec(config.kind, config.function, config.options, config.answer_tag))
    except RewardUnusableError as error:
        raise UsageError(str(error)) from error


def _missing(error: ImportError) -> UsageError:
    return UsageError(
        "reward.kind: http needs a package that is not installed: "
        f"pip install 'headrace[rollout]' ({error})"
    )
