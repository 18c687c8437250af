"""The trainer as a process: how it is looked at from the outside, and how it ends."""

from __future__ import annotations

import sys
from typing import Final

from headrace.checkpoint.storage import DamagedError
from headrace.config.config import Config
from headrace.errors import (
    CannotResumeError,
    NoValidCheckpointError,
    TrainerFencedError,
    UsageError,
)
from headrace.log import get_logger
from headrace.rpc.advertise import advertised
from headrace.rpc.calls import Stopped
from headrace.rpc.process import Process, ProcessOptions
from headrace.trainer.arrival import CannotFollowError, ResumedAnewError
from headrace.trainer.compute import ComputeThread
from headrace.trainer.departure import INTERRUPTED, Departure
from headrace.trainer.exposition import ProgressMetrics
from headrace.trainer.home import weights_root
from headrace.trainer.loop import NotSavedError
from headrace.trainer.model import pick_device
from headrace.trainer.part import PartDamagedError
from headrace.trainer.peers import check_addresses, saves
from headrace.trainer.progress import Progress
from headrace.trainer.service import TrainerService
from headrace.trainer.shards import ShardsDamagedError
from headrace.trainer.training import Training
from headrace.trainer.weights_groups import WeightsGroups
from headrace.trainer.weights_server import WeightsServer

OK: Final = 0
CRASHED: Final = 1
NO_CHECKPOINT: Final = 3
TRAINER_DIED: Final = 4

_UNUSABLE: Final = (NoValidCheckpointError, DamagedError, PartDamagedError, ShardsDamagedError)

log = get_logger()


async def run(config: Config, options: ProcessOptions) -> int:
    """Train to the end.

    Returns:
        0: trained to the end, now or before. 1: a file could not be read or written. 3: there are
        checkpoints, and none can be used. 4: a newer trainer has taken over, an earlier one was
        here and left no checkpoint, or the last checkpoint cannot be made. 130: told to stop
        before the end.

    Raises:
        UsageError: the address cannot be listened on, the model cannot be built, or the run cannot
            be gone on with as it is configured.
        BadTrajectoryError: a worker has stored what cannot be trained on.

    """
    check_addresses(config)
    process = Process.of_run(config, options)
    progress = Progress()
    process.expose(ProgressMetrics(progress).read)
    weights = WeightsServer(weights_root(config), run_id=config.run.run_id)
    groups = _groups(config)
    service = TrainerService(process.status, progress, weights, groups=groups, saves=saves(config))
    bound = await process.start(service.add_to)
    address = advertised(bound, config.endpoints.advertise_host)
    compute = ComputeThread(threads=config.trainer.threads, seed=config.trainer.seed)
    departure = Departure(process.stopping, grace_s=config.checkpoint.preempt_grace_s)
    training = Training(config, process, departure, progress, compute, address)
    try:
        await training.run()
    except Stopped:
        log.warning("stopped", step=progress.step, newest_saved=progress.saved_step)
        return INTERRUPTED
    except CannotResumeError as error:
        raise UsageError(str(error)) from error
    except TrainerFencedError as error:
        return _give_up("fenced", f"a newer trainer has taken over the run: {error}", TRAINER_DIED)
    except ResumedAnewError as error:
        return _give_up("resumed_anew", str(error), CRASHED)
    except CannotFollowError as error:
        return _give_up("cannot_resume", str(error), TRAINER_DIED)
    except NotSavedError as error:
        return _give_up("not_saved", str(error), TRAINER_DIED)
    except _UNUSABLE as error:
        return _give_up("no_valid_checkpoint", str(error), NO_CHECKPOINT)
    except OSError as error:
        if error.errno is None:  # no file's, such as a timeout: a bug
            raise
        return _give_up("no_file", f"the trainer cannot go on: {error}", CRASHED)
    finally:
        progress.end()
        with process.waits.waiting(
            "computation to end", owner="trainer", ends_when="what is being computed is done"
        ):
            await compute.close()
        departure.close()
        if groups is not None:
            await groups.close()
        await process.close()
    return OK


def _groups(config: Config) -> WeightsGroups | None:
    if config.weights.transport != "nccl":
        return None
    device = pick_device(config.trainer.device)
    return WeightsGroups(str(device), timeout_s=config.weights.nccl_timeout_s)


def _give_up(event: str, reason: str, code: int) -> int:
    log.critical(event, error=reason)
    # For people: the log is JSON.
    print(f"error: {' '.join(reason.split())}", file=sys.stderr)  # noqa: T201
    return code
