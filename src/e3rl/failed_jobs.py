"""What failed in a sweep, said at once: Hydra shows only the first error, after the last job."""

import logging
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

log = logging.getLogger(__name__)


class FailedJobs(Callback):
    """Hydra callback: logs the error of every job of a sweep, to the console and the job's log."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        if job_return.status is not JobStatus.FAILED or config.hydra.mode is not RunMode.MULTIRUN:
            return
        error = job_return._return_value  # the public name raises it
        trace = None if isinstance(error, CompactHydraException) else error
        log.error("%s: %s", " ".join(job_return.overrides or ()), error, exc_info=trace)
