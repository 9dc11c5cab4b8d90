"""A user's own workflow in a package of their own, and runs of it: every reply earns a reward that depends on
all of its text.
"""

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

PACKAGE = '''
"""A workflow that lives outside the project."""

import zlib

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Observation, Outcome
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection
from agent_system.registry import AgentRegistry, EnvRegistry, OrchestraRegistry
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss


def whole_text(text):
    return Projection(text, True, {})


@AgentRegistry.register("Asker", orchestra="alone")
@AgentRegistry.register("Asker", orchestra="my_flow")
class Asker(BaseAgent):
    prompt = "Ask: {env_prompt}"
    projection = staticmethod(whole_text)


@AgentRegistry.register("Verifier Agent", orchestra="my_flow")
class Verifier(BaseAgent):
    prompt = "Judge: {env_prompt}{team_context}"
    projection = staticmethod(whole_text)


@OrchestraRegistry.register("my_flow")
class MyFlow(BaseOrchestra):
    agents = ("Asker", "Verifier Agent")

    async def run(self, turn):
        await turn.act("Asker")
        verdict = await turn.act("Verifier Agent")
        return verdict.action


@OrchestraRegistry.register("alone")
class Alone(BaseOrchestra):
    agents = ("Asker",)

    async def run(self, turn):
        return (await turn.act("Asker")).action


@register_policy_loss("my_loss")
def my_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None, rollout_is_weights=None):
    loss = agg_loss(-log_prob * advantages, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/my_metric": 7.0}


@EnvRegistry.register("my_world")
class MyWorld(BaseEnv):
    blocking = False

    def reset(self, task):
        return Observation(task.prompt)

    def act(self, agent_id, action):
        return Outcome(local=zlib.crc32(action.encode()) % 100 / 100)

    def step(self, action):
        return Outcome(team=0.0, done=True, info={"success": len(action) % 2})


@EnvRegistry.register("my_forkable_world")
class MyForkableWorld(MyWorld):
    def fork(self):
        return MyForkableWorld(self.config, seed=self.seed)
'''

Run = Callable[..., Any]


def write_tasks(path: Path, count: int) -> str:
    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"{i}?"}],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="session")
def user_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder on the path that holds the package `my_flow_package`."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_flow_package").mkdir()
    (folder / "my_flow_package" / "__init__.py").write_text(PACKAGE)
    return folder


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 12 tasks."""
    return write_tasks(tmp_path_factory.mktemp("tasks") / "tasks.jsonl", 12)


@pytest.fixture
def overrides(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, user_package: Path, tasks: str
) -> Callable[..., list[str]]:
    """Hydra overrides of a run that takes a second or two; keyword arguments change some."""
    monkeypatch.syspath_prepend(str(user_package))

    def build(changes: Mapping[str, Any] | None = None) -> list[str]:
        base: dict[str, Any] = {
            "agent.plugins": "[my_flow_package]",
            "agent.orchestra_type": "my_flow",
            "agent.agent_ids": "[Asker,Verifier Agent]",
            "env.env_name": "my_world",
            "env.rollout.n": 3,
            "actor_rollout_ref.model.path": tiny_model_dir,
            "actor_rollout_ref.actor.optim.lr": 0.001,
            "actor_rollout_ref.rollout.max_num_seqs": 8,
            "actor_rollout_ref.rollout.num_threads": 1,
            "trainer.num_threads": 1,
            "data.train_files": tasks,
            "data.val_files": tasks,
            "data.val_max_samples": 2,
            "data.train_batch_size": 2,
            "data.max_prompt_length": 96,
            "data.max_response_length": 6,
            "trainer.controller": "local",
            "trainer.device": "cpu",
            # half a second of each run; test_engine_check.py and runs of scripts have it
            "trainer.checks": "[memory]",
            "trainer.logger": "[jsonl]",
            "trainer.total_training_steps": 2,
            "trainer.default_local_dir": tmp_path / "run",
        }
        return [f"{key}={value}" for key, value in (base | dict(changes or {})).items()]

    return build


@pytest.fixture
def compose(overrides: Callable[..., list[str]]) -> Callable[..., Any]:
    """The `RunConfig` of `overrides`, as the command line makes it."""
    from verl.trainer.plan.command_line import compose_config

    def build(changes: Mapping[str, Any] | None = None) -> Any:
        return compose_config(overrides(changes))

    return build


@pytest.fixture
def train(compose: Callable[..., Any], request: pytest.FixtureRequest) -> Run:
    """Run the trainer in this process on `overrides`, on the shared cluster of Ray if on Ray; returns the
    trainer after `fit`.
    """
    from agent_system.launch.train import run

    def go(changes: Mapping[str, Any] | None = None) -> Any:
        config = compose(changes)
        if config.trainer.controller == "ray":
            request.getfixturevalue("ray_cluster")
        return run(config)

    return go


@pytest.fixture(scope="module")
def _folders() -> dict[str, Path]:
    return {}


@pytest.fixture
def once(train: Run, tmp_path: Path, _folders: dict[str, Path]) -> Callable[..., Path]:
    """Train with these changes unless a test of the module has done so; returns the folder of the run, which
    must stay as it is.
    """

    def go(changes: Mapping[str, Any] | None = None) -> Path:
        key = str(changes)
        if key not in _folders:
            folder = tmp_path / f"once_{len(_folders)}"
            train(dict(changes or {}) | {"trainer.default_local_dir": folder})
            _folders[key] = folder
        return _folders[key]

    return go


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def weights(run_dir: Path, step: int) -> dict[str, bytes]:
    """The Hugging Face copies of a checkpoint, by worker group."""
    actor = run_dir / "checkpoints" / f"global_step_{step}" / "actor"
    return {p.name: (p / "huggingface" / "model.safetensors").read_bytes() for p in sorted(actor.iterdir())}


@pytest.fixture
def refused(train: Run) -> Callable[[dict[str, Any]], str]:
    """The one line that a run ends with, which must come before a worker is started."""
    from agent_system.launch.checks import USER_ERRORS

    def go(changes: dict[str, Any]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "agent_system.launch.train.build_controller",
                lambda config: pytest.fail("a worker would have been started"),
            )
            with pytest.raises(USER_ERRORS) as error:
                train(changes)
        return str(error.value)

    return go


def titles_below(pid: int) -> list[tuple[psutil.Process, str]]:
    """The processes below one that are alive, with their command lines; they may end meanwhile."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, " ".join(process.cmdline())))
    return found


@pytest.fixture
def titles() -> Iterator[set[str]]:
    """The titles of vLLM's processes that are seen while the test runs."""
    from tests.workers.rollout.conftest import engine_processes

    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            for process in engine_processes():
                with suppress(psutil.Error):
                    seen.update(process.cmdline()[:1])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield seen
    over.set()
    thread.join(10)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches (`DataProto`) of the steps of a test's runs, with advantages."""
    from verl.trainer.ppo.report import RunReport

    of_step = RunReport.of_step
    batches: list[Any] = []

    def recorded(report: RunReport, samples: Any, batch: Any, *args: Any) -> Any:
        batches.append(batch)
        return of_step(report, samples, batch, *args)

    monkeypatch.setattr(RunReport, "of_step", recorded)
    return batches


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every `Sample` of the episodes that end in a test's asynchronous runs, whether a step trains on it or
    not.
    """
    from agent_system.rollout.collector import GroupPlayer

    result, found = GroupPlayer.result, list[Any]()

    async def kept(player: GroupPlayer, episodes: list[Any]) -> Any:
        found.extend(sample for episode in episodes for sample in episode.samples)
        return await result(player, episodes)

    monkeypatch.setattr(GroupPlayer, "result", kept)
    return found


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The first engine that gets the weights of step 2 dies with them, while it samples."""
    from verl.single_controller.worker_group import WorkerDiedError
    from verl.workers.rollout.server import RolloutWorker

    dead: list[RolloutWorker] = []

    def dies(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def call(worker: RolloutWorker, *args: Any, **kwargs: Any) -> Any:
            if method.__name__ == "update_weights" and args[2] == 2 and not dead:
                dead.append(worker)
            if worker in dead:
                raise WorkerDiedError("its process is gone")
            return await method(worker, *args, **kwargs)

        return call

    for name in ("submit", "collect", "update_weights"):
        monkeypatch.setattr(RolloutWorker, name, dies(getattr(RolloutWorker, name)))
    return {}


def fit_digits(
    folder: Path,
    chats: Sequence[list[dict[str, str]]],
    prefix: str,
    suffix: str = "",
    digits: str = "0123456789",
) -> Path:
    """Train the model in a folder to reply to chats of one length with one of the digits after `prefix`, and
    save it there.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from verl.models.loader import load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    asked = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats
    ]
    replies = [[*tokenizer.encode(f"{prefix}{digit}{suffix}"), tokenizer.eos_token_id] for digit in digits]
    model, draw = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        torch.Generator().manual_seed(0),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(100):
        ids = torch.tensor(
            [prompt + replies[torch.randint(len(digits), (), generator=draw)] for prompt in asked]
        )
        labels = ids.clone()
        labels[:, : -len(replies[0])] = -100
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder
