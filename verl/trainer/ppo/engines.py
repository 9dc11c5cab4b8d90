"""The rollout engines of a team: started, replaced when they die, and given the weights of their
policies.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl.protocol import RolloutClient
from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation
from verl.single_controller.worker_group import WorkerGroup
from verl.trainer.checkpoint.given_models import fingerprints, groups_with_fixed_models
from verl.trainer.config import CollectConfig, TrainerConfig
from verl.trainer.plan.learners import by_group
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.controller import Controller
from verl.trainer.ppo.group_calls import GroupCalls, as_raised
from verl.trainer.ppo.timeline import GENERATION, OpenSpan
from verl.trainer.ppo.weight_sync import engine_errors, send_weights

if TYPE_CHECKING:
    from verl.workers.rollout.restart import RestartingClient

logger = logging.getLogger(__name__)
# Time limit of the shutdown of engines at the end of a run.
END_TIMEOUT_S = 10.0


class TeamEngines:
    """A rollout server for every worker group.

    Args:
        trainer: keys under `trainer`.
        rollout: keys under `rollout`.
        plan: agents, policies and worker groups.
        controller: starts workers.
        calls: calls to the worker groups.
        policies: policy workers of the trained groups, once they are started.
        log_dir: folder for logs of engine processes; None for temporary files.

    Attributes:
        groups: the engines' workers, by worker group.
        clients: for requests, by worker group.
    """

    def __init__(
        self,
        trainer: TrainerConfig,
        rollout: CollectConfig,
        plan: RunPlan,
        controller: Controller,
        calls: GroupCalls,
        policies: Mapping[str, WorkerGroup],
        log_dir: Path | None,
    ) -> None:
        self._trainer = trainer
        self._rollout = rollout
        self._controller = controller
        self._log_dir = log_dir
        self._calls = calls
        self._policies = policies
        self._learners = plan.policies
        self._specs = {spec.wg_id: spec for spec in plan.groups}
        self.groups: dict[str, WorkerGroup] = {}
        self.clients: dict[str, RestartingClient] = {}
        self._arguments: dict[str, dict[str, Any]] = {}
        self._fingerprints = fingerprints(groups_with_fixed_models(plan))
        # step of each policy's weights
        self._versions = dict.fromkeys(plan.policies, 0)
        # bytes, by worker group
        self._sent_bytes, self._sent_lock = Counter[str](), threading.Lock()

    def spawn(self, wg_id: str, common: Mapping[str, Any], threads: int) -> None:
        """Start the processes of a group's engines; `start` loads the model.

        Args:
            wg_id: the worker group.
            common: arguments of all workers of the group.
            threads: CPU threads, unless `rollout.num_threads` or `trainer.num_threads` is set.
        """
        spec = self._specs[wg_id]
        self._arguments[wg_id] = {
            **common,
            "adapters": spec.adapters,
            "max_model_len": spec.max_model_len,
            "num_threads": spec.config.rollout.num_threads or self._trainer.num_threads or threads,
            "log": str(self._log_dir / f"engine-{wg_id}.log") if self._log_dir else "",
        }
        self._spawn(wg_id)
        on_busy = partial(self._calls.timeline.add, wg_id, GENERATION)
        # a request ends after half of it
        limit_s = 2 * self._rollout.call_timeout_s
        # engines and their clients, which a team behind APIs does not have
        from verl.workers.rollout.restart import RestartingClient

        self.clients[wg_id] = RestartingClient(
            self._client(wg_id), partial(self._restarted, wg_id), wg_id, on_busy, limit_s
        )

    def _spawn(self, wg_id: str) -> None:
        from verl.workers.rollout.server import RolloutWorker  # see `spawn`

        self.groups[wg_id] = self._controller.spawn(
            f"rollout_{wg_id}",
            RolloutWorker,
            self._specs[wg_id].engine_devices,
            self._arguments[wg_id],
            max_concurrency=1000,
        )

    def _client(self, wg_id: str) -> RolloutClient:
        per_engine = self._specs[wg_id].config.rollout.tensor_model_parallel_size
        from verl.workers.rollout.client import replica_client  # see `spawn`

        return replica_client(self.groups[wg_id], self._rollout.call_timeout_s, per_engine)

    def start(self, wg_id: str) -> None:
        """Load the model of a group."""
        from verl.workers.rollout.client import start_engines  # see `spawn`

        start_engines(self.groups[wg_id], self._specs[wg_id].config.rollout.tensor_model_parallel_size)

    def _restarted(self, wg_id: str) -> RolloutClient:
        """Replace a worker group's engines by new ones with the same weights, and return their
        client.

        Raises EngineGoneError if the files of their model have changed.
        """
        spec = self._specs[wg_id]
        if wg_id in self._fingerprints and fingerprints([spec]).get(wg_id) != self._fingerprints[wg_id]:
            raise EngineGoneError(
                f"the files of the model {spec.model_path!r} have changed since the run began; "
                "restore them and continue"
            )
        # no weights are sent to an engine that is being replaced
        with self._calls.hold(wg_id):
            self._end([wg_id])
            self.groups[wg_id].shutdown()
            self._spawn(wg_id)
            self.start(wg_id)
            if wg_id in self._policies:
                self._send_weights(wg_id, by_group(self._learners, self._learners)[wg_id])
        return self._client(wg_id)

    def serving_clients(self) -> dict[str, RolloutClient]:
        """Return clients that replace no engine that dies, by worker group: without policy workers
        a new one would not get the weights that were sent to it.
        """
        return {wg_id: client.serving for wg_id, client in self.clients.items()}

    def free_caches(self) -> None:
        """Free the KV caches of engines (`actor_rollout_ref.rollout.free_cache_engine`);
        `sync_weights` allocates them again.

        Engines of untrained groups are not included: one that also frees its weights would never
        receive them again. A dead engine is skipped; `sync_weights` replaces it.
        """

        def free(wg_id: str) -> None:
            try:
                with engine_errors():
                    self.groups[wg_id].sleep()
            except EngineGoneError as error:
                logger.warning(
                    "engine %s died, and is restarted when weights are sent to it: %s",
                    wg_id,
                    as_raised(error),
                )

        self._calls.run(
            "free_caches",
            [wg for wg in self._policies if self._arguments[wg]["config"].rollout.free_cache_engine],
            free,
        )

    def note_update(self, policy: str, version: int) -> None:
        """Label the weights of a policy, which a restarted engine gets as well."""
        self._versions[policy] = version

    @property
    def newest(self) -> int:
        """Step of the newest weights of any policy, of which an engine may have sampled."""
        return max(self._versions.values(), default=0)

    def sync_weights(self, version: int, policies: Collection[str] | None = None) -> None:
        """Send the weights of policies (None: of all), in buckets; replies sampled afterwards carry
        `version`.

        For a policy that is an adapter, only the adapter is sent. A dead engine is replaced, as one
        that dies while it samples.
        """
        of_group = by_group(self._learners, self._learners if policies is None else policies)
        self._versions |= {
            policy: version for group_policies in of_group.values() for policy in group_policies
        }
        self._calls.each(list(of_group), lambda wg: self._publish(wg, of_group[wg]))

    def publish(self, policy: str) -> None:
        """Send the weights of one policy, as `sync_weights` does, in this thread: after its update,
        while others are updated.
        """
        self._publish(self._learners[policy].wg_id, [policy])

    def resend(self, wg_id: str) -> None:
        """Send the current weights of all policies of a group, in this thread, with their versions
        unchanged.
        """
        self._publish(wg_id, by_group(self._learners, self._learners)[wg_id])

    def sample(self, wg_id: str, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        """Return the first reply to every request from each engine of a group; an engine that dies
        is replaced once.

        Raises EngineGoneError if it cannot be replaced or dies again, `RolloutError` for a request
        that it cannot serve.
        """
        # Of the engine that is called now: another thread may replace it meanwhile.
        serving = self.clients[wg_id].serving
        try:
            return self._sample(wg_id, requests)
        except EngineGoneError as error:
            self.clients[wg_id].replace(serving, EngineGoneError(str(as_raised(error))))
        replies = self._sample(wg_id, requests)
        self.clients[wg_id].allow()
        return replies

    def _sample(self, wg_id: str, requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
        group = self.groups[wg_id]
        leaders = range(0, group.world_size, self._specs[wg_id].config.rollout.tensor_model_parallel_size)
        with engine_errors():
            calls = [
                [group.call_async("generate", request, rank=rank) for request in requests] for rank in leaders
            ]
            return [[call.get()[0] for call in of_engine] for of_engine in calls]

    def longest(self, wg_id: str) -> int:
        """Return the maximum number of tokens of prompt and reply together that the engines of a
        group serve.
        """
        return int(self._arguments[wg_id]["max_model_len"])

    def _publish(self, wg_id: str, policies: Collection[str]) -> None:
        """Send the weights of a group's policies, and allow its engine a restart. Raises
        EngineGoneError if it cannot be replaced.
        """
        # Of the engine that is called now: another thread may replace it meanwhile.
        serving = self.clients[wg_id].serving
        why = ""
        with self._calls.hold(wg_id, "sync_weights"):
            try:
                self._send_weights(wg_id, policies)
            except EngineGoneError as error:
                # not the error itself, which references a bucket
                why = str(as_raised(error))
        # without holding the group, for which a restart in another thread may wait; the new engine
        # has received its weights
        if why:
            self.clients[wg_id].replace(serving, EngineGoneError(why))
        self.clients[wg_id].allow()

    def _send_weights(self, wg_id: str, policies: Collection[str]) -> None:
        """Send the current weights of a group's policies; raises as `send_weights` does."""
        versions = {self._learners[policy].adapter: self._versions[policy] for policy in policies}
        n_bytes = send_weights(self._policies[wg_id], self.groups[wg_id], versions)
        with self._sent_lock:
            self._sent_bytes[wg_id] += n_bytes

    def allow_restarts(self) -> None:
        """Allow one restart of each engine in the step that begins."""
        for client in self.clients.values():
            client.allow()

    @property
    def restarts(self) -> int:
        """Number of restarts of engines that died."""
        return sum(client.restarts for client in self.clients.values())

    def open_spans(self) -> list[OpenSpan]:
        """Return the engines with requests, each from when it last answered one of them, or got the
        first.
        """
        waiting = {wg: client.waiting_since for wg, client in self.clients.items()}
        return [OpenSpan(wg, GENERATION, since) for wg, since in waiting.items() if since is not None]

    def take_metrics(self) -> dict[str, float]:
        """Return numbers of every worker group since the last call.

        `timing_s/gen` are the seconds in which its engine had a request, `perf/sync_mb` the MiB
        that it was sent, if it was.
        """
        with self._sent_lock:
            bytes_by_group = self._sent_bytes
            self._sent_bytes = Counter[str]()
        seconds = {f"wg/{wg}/timing_s/gen": client.take_busy_seconds() for wg, client in self.clients.items()}
        return seconds | {f"wg/{wg}/perf/sync_mb": n_bytes / 2**20 for wg, n_bytes in bytes_by_group.items()}

    def shutdown(self) -> None:
        """Stop all engines."""
        self._end(list(self.groups))
        for group in self.groups.values():
            group.shutdown()

    def _end(self, wg_ids: Sequence[str]) -> None:
        """Let engines with child processes stop them and clean up; dead or hanging engines are
        killed later.
        """
        pending = []
        for wg_id in wg_ids:
            # Whatever one raises, the others have to be ended.
            with suppress(Exception):
                if self._specs[wg_id].config.rollout.name == "vllm":
                    pending.append(self.groups[wg_id].end())
        for calls in pending:
            with suppress(Exception):
                calls.get(timeout=END_TIMEOUT_S)
