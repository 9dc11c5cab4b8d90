"""`credit.js` computes from records what the trainer computed from its batch: rewards, groups, advantages."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agent_system.record import EpisodeRecord, RewardTerms, Sample, SampleIdentity, SampleRequest
from agent_system.reward import assign_rewards
from agent_system.rollout.batch import build_batch
from tests.report.reading import column
from verl.protocol import DataProto
from verl.protocol.generate import GREEDY_SUFFIX, Generation
from verl.report.index import read_report
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import with_values
from verl.trainer.plan.command_line import save_config
from verl.trainer.ppo.collect.greedy_baseline import reward_baselines
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.advantage import group_numbers
from verl.trainer.ppo.credit.record import write_credit
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.metric_utils import compute_agent_metrics
from verl.utils.timer import Timer

FOLDER = Path(__file__).parents[2] / "verl" / "report" / "page"
# Those without elements, in the order of the page.
SCRIPTS = [FOLDER / "core.js", *sorted(FOLDER.glob("credit*.js"))]
# Answers every line, a list of runs, by a line; nothing of an earlier line is left in its context.
RUNNER = """
const fs = require("fs");
const vm = require("vm");
const texts = process.argv.slice(1).map((path) => fs.readFileSync(path, "utf8"));
const scripts = new vm.Script(texts.join("\\n"));
const results = new vm.Script(`JSON.stringify(JSON.parse(line).map((run) => {
  const rows = report.stepRows(run, run.steps[0]);
  const path = report.creditPath(run, rows, run.config);
  const keys = rows.map((row) => [row.traj_uid, row.turn, row.call, row.candidate].join("/"));
  return { path, keys, checks: report.creditChecks(run, rows, path) };
}))`);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const context = vm.createContext({ console, line });
  scripts.runInContext(context);
  console.log(results.runInContext(context));
});
"""
AGENTS = ("Solver Agent", "verifier", "writer")
SEEDS = 6

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="the script of the page runs in node, which is not installed"
)
pytestmark = needs_node


def sample(rng: Random, agent: str, turn: int, number: int) -> Sample:
    """A call with rewards that are often equal, sometimes unreadable, sometimes masked."""
    tokens = rng.randint(1, 9)
    masked = rng.random() < 0.15
    has_local = rng.random() < 0.6
    return Sample(
        agent_id=agent,
        text="",
        action="",
        valid=rng.random() < 0.8,
        fields={},
        identity=SampleIdentity(
            policy_id="own" if agent == "writer" else "shared",
            wg_id="other" if agent == "writer" else "group", turn=turn, call=number,
            anchor=rng.choice(["a", "b", "c"]), depth=rng.randint(0, 1),
            design=rng.choice(["", "x"]),
        ),
        request=SampleRequest(prompt_text="", prompt_ids=(1, 2), max_tokens=10),
        generation=Generation(tuple(range(tokens)), (-0.5,) * tokens, rng.choice(["stop", "length"])),
        rewards=RewardTerms(
            act_reward=rng.choice([None, 0.0, 0.5, rng.random()]),
            local_reward=rng.choice([0.0, 0.25, 1.0, rng.random()]) if has_local else 0.0,
            local_given=has_local,
        ),
        reward_terms={"style": rng.choice([0.0, 1.0, rng.random()])},
        response_mask=tuple(rng.randint(0, 1) for _ in range(tokens)) if masked else (),
    )  # fmt: skip


def candidates(rng: Random, call: Sample, greedy: bool) -> list[Sample]:
    """The candidates of a call of a tree, one of them committed, and a greedy one that is not trained."""
    k = rng.randint(1, 4)
    chosen = rng.randrange(k)
    out = []
    for number in range(k + greedy):
        fork = rng.choice([0.0, 1.0, rng.random()])
        local = rng.choice([0.0, 0.5, rng.random()])
        other = sample(rng, call.agent_id, call.identity.turn, call.identity.call)
        committed = number == chosen
        one = replace(
            other,
            identity=replace(
                call.identity, candidate=number, committed=committed, greedy=number == k, trained=number < k
            ),
        )
        out.append(
            one.with_rewards(
                fork_reward=fork, candidate_reward=fork + local, local_reward=local,
                episode_local=rng.random(), act_reward=fork if committed else None,
            )
        )  # fmt: skip
    return out


def with_token_rewards(rng: Random, call: Sample) -> Sample:
    values = tuple(rng.choice([0.0, 0.5]) for _ in call.generation.token_ids)
    return call.with_rewards(token_rewards=values, local_reward=sum(values), local_given=True)


def episode(rng: Random, uid: str, index: int, tree: bool, greedy: bool, tokens: bool) -> EpisodeRecord:
    samples: list[Sample] = []
    turns = rng.randint(1, 3)
    for turn in range(1, turns + 1):
        number = 0
        for agent in AGENTS:
            for _ in range(rng.choice([0, 1, 1, 2])):
                call = sample(rng, agent, turn, number)
                rounds = 0 if tree else rng.choice([0, 0, 0, 1])  # earlier generations of the same call
                for _ in range(rounds):
                    samples.append(sample(rng, agent, turn, number).with_identity(final_call=number + rounds))
                    number += 1
                last = replace(call, identity=replace(call.identity, call=number))
                samples += candidates(rng, last, greedy) if tree else [last]
                number += 1
    order: dict[tuple[int, int], int] = {}
    for s in samples:
        order.setdefault(s.identity.call_key, len(order))
    samples = [
        s.with_identity(order=order[s.identity.call_key], prior_replies=order[s.identity.call_key])
        for s in samples
    ]
    if tokens:
        samples = [with_token_rewards(rng, s) if rng.random() < 0.5 else s for s in samples]
    turn_rewards = tuple(rng.choice([0.0, 1.0]) for _ in range(turns))
    acts = sum(s.rewards.act_reward or 0.0 for s in samples if s.identity.committed)
    return EpisodeRecord(
        uid=uid,
        traj_uid=f"{uid}-{index}",
        task_id=uid[:2],
        data_source=rng.choice(["algebra", "sets"]),
        index=index,
        samples=tuple(samples),
        team_reward=acts + sum(turn_rewards),
        turns=turns,
        turn_rewards=turn_rewards,
        failure="timeout" if rng.random() < 0.05 else None,
        reward_terms={"speed": rng.random()} if rng.random() < 0.5 else {},
    )


@dataclass
class ScriptedTeam:
    """Values and log-probs by hand in the place of worker groups."""

    rng: Random
    uses_critic: bool
    uses_reference: bool

    def _near(self, centre: torch.Tensor, far: float) -> torch.Tensor:
        """Mostly the same log-probs, some much lower."""
        draws = [[self.rng.choice([0.0, 0.0, 0.1, far]) for _ in row] for row in centre]
        return centre - torch.tensor(draws)

    def compute_values(self, batch: DataProto) -> DataProto:
        shape = batch.batch["response_mask"].shape
        values = torch.tensor([[self.rng.random() for _ in range(shape[1])] for _ in range(shape[0])])
        return DataProto.from_dict(tensors={"values": values})

    def compute_log_prob(self, batch: DataProto, sum_pi_squared: bool = False) -> DataProto:
        return DataProto.from_dict(
            tensors={"old_log_probs": self._near(batch.batch["rollout_log_probs"], 3.0)}
        )

    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(
            tensors={"ref_log_prob": self._near(batch.batch["rollout_log_probs"], 0.5)}
        )


@dataclass
class Case:
    """One step: what the page gets, and what the trainer computed.

    Attributes:
        batch: rows with advantages.
        run: the run as the report reads it from its files.
        config: of the run.
        keys: episode, turn, call and candidate of each row.
    """

    batch: DataProto
    run: dict[str, Any]
    config: RunConfig
    keys: list[str]

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of each row that are trained, `[bsz]`."""
        tokens: np.ndarray = self.batch.batch["response_mask"].sum(dim=1).numpy()
        return tokens

    @property
    def advantages(self) -> np.ndarray:
        """Mean over these tokens, `[bsz]`."""
        mask = self.batch.batch["response_mask"]
        sums: np.ndarray = (self.batch.batch["advantages"].double() * mask).sum(dim=1).numpy()
        return sums / np.maximum(self.tokens, 1)

    @property
    def weights(self) -> list[float]:
        """Weight of each row in the loss."""
        if "row_weights" not in set(self.batch.batch.keys()):
            return [1.0] * len(self.batch)
        weights: list[float] = self.batch.batch["row_weights"].tolist()
        return weights


def make_case(
    folder: Path,
    seed: int,
    algorithm: dict[str, Any],
    reward: dict[str, Any] | None = None,
    tree: str = "",
    version: int = 0,
    credit: bool = True,
    state: dict[str, Any] | None = None,
    lost: float = 0.0,
) -> Case:
    """A random step, scored and compared by the trainer's own code, and written as a run folder.

    Args:
        folder: a new folder is made in it.
        seed: of everything random.
        algorithm, reward: keys of the run.
        tree: `rollout.tree.returns`; empty: no tree.
        version: of the weights; the step is the one after it.
        credit: write `credit/`.
        state: of estimators, goes on.
        lost: share of the episodes that are not written.
    """
    folder = Path(tempfile.mkdtemp(dir=folder))
    rng = Random(f"{seed} {algorithm.get('adv_estimator')} {tree}")
    config = RunConfig()
    config.algorithm = with_values(config.algorithm, algorithm, "algorithm")
    config.reward = with_values(config.reward, reward or {}, "reward")
    if tree:
        keys = {"returns": tree, "candidate_weight": rng.choice([0.0, 0.5, 1.0])}
        config.rollout = with_values(config.rollout, {"sampling": "tree", "tree": keys}, "rollout")
    estimators = {config.algorithm.adv_estimator}
    estimators |= {own.get("adv_estimator") for own in config.algorithm.per_agent.values()}
    tokens = config.reward.granularity == "token"
    greedy_calls = "remax" in estimators and tree == "step"
    penalty = {agent: rng.choice([0.0, 0.1]) for agent in AGENTS}

    def play(uids: Sequence[str], sizes: Sequence[int], greedy: bool) -> list[EpisodeRecord]:
        return [
            episode(rng, uid, i, bool(tree), greedy, tokens)
            for uid, size in zip(uids, sizes, strict=True)
            for i in range(size)
        ]

    sizes = [rng.randint(1, 8) for _ in range(rng.randint(1, 5))]
    uids = [f"t{i % 3}s{i}" for i in range(len(sizes))]
    episodes = play(uids, sizes, greedy_calls)
    records, metrics = assign_rewards(episodes, config.reward, penalty, tree or "step")
    batch = build_batch(
        records,
        greedy_baselines=greedy_calls,
        token_rewards=tokens,
        reward_terms={agent: ("style", "speed") for agent in AGENTS},
    )
    if batch is None:  # all of few episodes have failed
        return make_case(folder, seed + 1000, algorithm, reward, tree, version, credit, state, lost)
    if "remax" in estimators and not greedy_calls:
        names = [uid + GREEDY_SUFFIX for uid in uids]
        greedy, _ = assign_rewards(
            play(names, [1] * len(uids), False), config.reward, penalty, tree or "step"
        )
        result: Any = SimpleNamespace(batch=build_batch(greedy), episodes=greedy)
        batch.non_tensor_batch["reward_baselines"], _ = reward_baselines(batch, result, config.reward.alpha)
        records = [*records, *greedy]
    correction = config.algorithm.rollout_correction
    old = config.algorithm.use_kl_in_reward or correction.corrects_batch
    plan: Any = SimpleNamespace(
        committed=tree == "committed", on_policy=not old, needs_sum_pi_squared=False,
        trained=[SimpleNamespace(estimator=name) for name in estimators],
    )  # fmt: skip
    team: Any = ScriptedTeam(rng, "gae" in estimators, config.algorithm.use_kl_in_reward)
    assigner = CreditAssigner(config, plan, team)
    assigner.load_state_dict({"kl_coef": {}, "estimators": state or {}})
    batch, _ = assigner.score(batch, Timer(), version)
    if state is not None:
        state |= assigner.estimator_state
    metrics |= compute_agent_metrics(batch, config.algorithm)
    mask = batch.batch["response_mask"].bool()
    metrics["critic/advantages/mean"] = batch.batch["advantages"][mask].mean().item()
    step = version + 1
    save_config(config, folder / "config.yaml")
    agents = {(s.agent_id, s.identity.policy_id, s.identity.wg_id) for r in episodes for s in r.samples}
    names = ("agent", "policy", "group")
    placed = [dict(zip(names, agent, strict=True), trained=True) for agent in sorted(agents)]
    state_of_run = {"format": 1, "attempt": {"started": 0.0, "from_step": 0}, "state": "done", "step": step}
    (folder / "run.json").write_text(json.dumps(state_of_run | {"agents": placed}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": step, **metrics}) + "\n")
    (folder / "trajectories").mkdir()
    written = [r for r in records if rng.random() >= lost] or records[:1] if lost else records
    lines = [json.dumps(record.to_json()) for record in written]
    (folder / "trajectories" / f"train_{step:06d}.jsonl").write_text("\n".join(lines) + "\n")
    if credit:
        write_credit(folder, step, StepSamples(batch, records, {}, 0), batch, config.algorithm)
    columns = zip(
        *(batch.non_tensor_batch[n] for n in ("traj_uid", "turn", "call", "candidate")), strict=True
    )
    return Case(batch, read_report([folder]).runs[0], config, ["/".join(map(str, key)) for key in columns])


class Node:
    """A process of node for all tests; a new one after an error."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def answer(self, line: str) -> str:
        """The line that `RUNNER` writes for a line."""
        if self.process is None:
            # optimized code is of one context: to make it for each takes longer than these runs
            command = ["node", "--no-opt", "-e", RUNNER, *map(str, SCRIPTS)]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        process = self.process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        if answer := process.stdout.readline():
            return answer
        self.process = None
        process.wait(60)
        raise AssertionError(process.stderr.read())

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate(timeout=60)
            assert self.process.returncode == 0


NODE = Node()


@pytest.fixture(scope="module", autouse=True)
def _node_ends() -> Iterator[None]:
    yield
    NODE.close()


def run_script(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The results of each case: `path` and `keys` of every call of the step, and `checks`."""
    results: list[dict[str, Any]] = json.loads(NODE.answer(json.dumps([case.run for case in cases])))
    return results


def rows_of(case: Case, result: dict[str, Any]) -> list[dict[str, Any]]:
    """The result of each row of the batch; calls that were not trained have none."""
    by_key = {key: r for key, r in zip(result["keys"], result["path"], strict=True) if r is not None}
    assert set(by_key) == set(case.keys)
    return [by_key[key] for key in case.keys]


def check(cases: Sequence[Case], tolerance: float = 1e-6, why: Sequence[str] = ("",)) -> None:
    """Every advantage, group, weight and reward of the script is the trainer's, of rows with one of these
    causes alone.
    """
    for number, (case, result) in enumerate(zip(cases, run_script(cases), strict=True)):
        where = f"case {number}: {case.config.algorithm} {case.config.reward}"
        rows = rows_of(case, result)
        assert {r["why"] for r in rows} <= {*why}, where
        expected = case.advantages
        computed = np.array([r["advantage"] for r in rows], dtype=np.float64)
        with_advantage = (case.tokens > 0) & np.array([not r["why"] for r in rows])
        worst = np.abs(computed - expected) / np.maximum(1.0, np.abs(expected))
        assert (worst <= tolerance)[with_advantage].all(), (worst[with_advantage].max(), where)
        assert not any(r["marked"] for r in rows), where
        groups = zip(
            (r["group"] for r in rows), group_numbers(case.batch, case.config.algorithm), strict=True
        )
        pairs = set(groups)
        assert len(pairs) == len({g for g, _ in pairs}) == len({g for _, g in pairs}), where
        rewards = case.batch.non_tensor_batch["reward"].astype(float)
        assert np.allclose([r["terms"][-1]["value"] for r in rows], rewards, rtol=1e-8, atol=1e-8), where
        for r, weight in zip(rows, case.weights, strict=True):
            assert r["why"] or r.get("weight", 1.0) == pytest.approx(weight), where
        assert not [check for check in result["checks"] if check["marked"]], where


GROUPS: tuple[dict[str, Any], ...] = (
    {}, {"group_by": ["uid"]}, {"group_by": ["uid", "agent_id", "turn"]}, {"group_by": []},
    {"group_by": ["traj_uid", "agent_id", "turn", "call"]}, {"group_by": ["task_id", "depth"]},
    {"group_by": ["uid", "design"]}, {"group_by": ["uid", "policy_id"]}, {"group_by": ["wg_id"]},
    {"group_by": ["uid", "data_source", "candidate"]},
)  # fmt: skip
ESTIMATORS: dict[str, dict[str, list[Any]]] = {
    "grpo": {"norm_adv_by_std_in_grpo": [True, False]},
    "rloo": {},
    "opo": {},
    "gpg": {},
    "grpo_passk": {"norm_adv_by_std_in_grpo": [True, False]},
    "gigpo": {
        "gamma": [1.0, 0.9],
        "gigpo": [{}, {"mode": "mean_std_norm", "step_advantage_w": 0.5}],
    },
    "gdpo": {
        "gdpo_reward_keys": [["team_reward", "local_reward"], ["reward", "style", "valid"]],
        "norm_adv_by_std_in_grpo": [True, False],
    },
    "reinforce_plus_plus": {"gamma": [1.0, 0.9]},
    "reinforce_plus_plus_baseline": {},
    "remax": {},
    "rae": {"rae": [{}, {"decay": 0.5, "order": "update_first"}]},
    "m_grpo": {
        "m_grpo": [{"main_agent": "Solver Agent", "sub_calls": 2}, {"main_agent": "writer", "sub_calls": 4}],
        "norm_adv_by_std_in_grpo": [True, False],
    },
    "gae": {"gae": [{"level": "turn"}], "gamma": [1.0, 0.9], "lam": [1.0, 0.8]},
}
WEIGHED = [name for name in ESTIMATORS if name not in ("grpo_passk", "m_grpo")]
OVER = [name for name in ESTIMATORS if name not in ("m_grpo", "gae", "remax", "reinforce_plus_plus")]


def random_algorithm(rng: Random, name: str) -> dict[str, Any]:
    algorithm = {"adv_estimator": name, "singleton": rng.choice(["zero", "raw"])} | rng.choice(GROUPS)
    algorithm |= {key: rng.choice(values) for key, values in ESTIMATORS[name].items()}
    # set in any case: an agent's own settings would have the common ones otherwise
    algorithm["call_weighting"] = rng.choice(["sample", "trajectory"]) if name in WEIGHED else "sample"
    over = ["auto", "samples", "trajectories"] if name in OVER else ["auto"]
    algorithm["statistics_over"] = rng.choice(over)
    return algorithm


def random_reward(rng: Random, tree: str = "") -> dict[str, Any]:
    reward: dict[str, Any] = {
        "alpha": rng.choice([1.0, 0.5]),
        "overlong_buffer": {"len": rng.choice([None, 0, 4])},
    }
    if tree == "step":
        return reward | {"team_scope": "call"}
    shaping = rng.choice(
        ["default", "turn_weighted", "discount", "hop_weighted", "hop_discount", "binary", "normalized"]
    )
    reward |= {"shaping": shaping, "team_scope": rng.choice(["episode", "turn", "call"])}
    mode = rng.choice(["none", "none", "uniform", "discounted", "threshold"])
    if mode != "none":
        reward |= {"team_scope": "episode", "propagation": {
            "mode": mode, "theta_quantile": rng.choice([None, 0.3]), "min_pass_rate": rng.choice([0.0, 0.6]),
            "theta": 0.4, "local_range": [0.0, 9.0],
        }}  # fmt: skip
    return reward


@pytest.mark.parametrize("tree", ["", "step", "committed"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_gives_the_trainers_advantages(name: str, tree: str, tmp_path: Path) -> None:
    cases = []
    for seed in range(SEEDS):
        rng = Random(f"settings {name} {tree} {seed}")
        cases.append(make_case(tmp_path, seed, random_algorithm(rng, name), random_reward(rng, tree), tree))
    check(cases)


def test_agents_have_settings_of_their_own(tmp_path: Path) -> None:
    cases = []
    for seed in range(2 * SEEDS):
        rng = Random(f"per agent {seed}")
        names = rng.sample([name for name in ESTIMATORS if name != "m_grpo"], 3)
        algorithm = random_algorithm(rng, names[0])
        algorithm["per_agent"] = {
            "solver_agent": random_algorithm(rng, names[1]),
            "verifier": rng.choice([{}, {"singleton": "raw", "gamma": 0.5}]),
            "writer": random_algorithm(rng, names[rng.choice([1, 2])]),
        }
        cases.append(make_case(tmp_path, seed, algorithm, random_reward(rng), rng.choice(["", "committed"])))
    check(cases)


def test_rejected_tokens_and_calls_are_in_no_statistic(tmp_path: Path) -> None:
    cases = []
    for seed in range(2 * SEEDS):
        rng = Random(f"rejection {seed}")
        name = rng.choice(list(ESTIMATORS))
        mode = rng.choice(["token_k1", "seq_mean_k1"])
        correction = {"rollout_rs": mode, "rollout_rs_threshold": "0.5_2.0"}
        algorithm = random_algorithm(rng, name) | {"rollout_correction": correction}
        cases.append(make_case(tmp_path, seed, algorithm, random_reward(rng)))
    assert any(0 in case.tokens for case in cases)
    check(cases)


def test_the_kl_in_the_reward_is_subtracted(tmp_path: Path) -> None:
    cases = []
    for seed in range(2 * SEEDS):
        rng = Random(f"kl {seed}")
        name = rng.choice(["grpo", "rloo", "gigpo", "gae", "opo", "reinforce_plus_plus_baseline", "remax"])
        algorithm = random_algorithm(rng, name) | {"kl_ctrl": {"kl_coef": 0.1}}
        algorithm["norm_adv_by_std_in_grpo"] = False
        cases.append(make_case(tmp_path, seed, algorithm, random_reward(rng), rng.choice(["", "committed"])))
    check(cases, 3e-6, ("", "the KL in the reward of each token is in no file"))


def test_rewards_of_single_tokens_add_up(tmp_path: Path) -> None:
    cases = []
    for seed in range(2 * SEEDS):
        rng = Random(f"tokens {seed}")
        name = rng.choice(["grpo", "rloo", "gae", "remax", "reinforce_plus_plus"])
        algorithm = random_algorithm(rng, name) | {"norm_adv_by_std_in_grpo": False}
        cases.append(make_case(tmp_path, seed, algorithm, {"granularity": "token"}))
    check(cases, 3e-6, ("", "which of the tokens with a reward were masked or rejected is in no file"))


def test_the_moving_average_of_rae_is_in_credit_after_the_first_step(tmp_path: Path) -> None:
    cases = []
    for order in ("subtract_first", "update_first"):
        state: dict[str, Any] = {}
        for version in range(3):
            algorithm = {"adv_estimator": "rae", "rae": {"decay": 0.9, "order": order}}
            cases.append(make_case(tmp_path, version, algorithm, version=version, state=state))
    check(cases)
    for case in cases:
        case.run["credit"] = {}
    check(cases, why=("", "the moving average of the role is in credit/ alone"))
    whys = [{r["why"] for r in result["path"] if r} for result in run_script(cases)]
    assert [why == {""} for why in whys] == [True, False, False] * 2, "the first step needs no file"


def test_groups_of_which_rows_are_not_written_are_not_computed(tmp_path: Path) -> None:
    cases = [make_case(tmp_path, seed, {"adv_estimator": "grpo"}, lost=0.3) for seed in range(SEEDS)]
    cases += [make_case(tmp_path, seed, {"adv_estimator": "gdpo", "gdpo_reward_keys": ["reward"]}, lost=0.3)
              for seed in range(SEEDS)]  # fmt: skip
    computed = []
    for case, result in zip(cases, run_script(cases), strict=True):
        place = {key: i for i, key in enumerate(case.keys)}
        group = group_numbers(case.batch, case.config.algorithm)
        present = np.zeros(len(case.keys), dtype=bool)
        present[[place[key] for key, r in zip(result["keys"], result["path"], strict=True) if r]] = True
        whole = case.config.algorithm.adv_estimator == "gdpo"
        for key, r in zip(result["keys"], result["path"], strict=True):
            if r is None:
                continue
            assert not r["marked"]
            absent = ~present if whole else ~present & (group == group[place[key]])
            assert bool(r["why"]) == bool(absent.any())
            if not r["why"] and case.tokens[place[key]]:
                computed.append(key)
                assert r["advantage"] == pytest.approx(case.advantages[place[key]], abs=1e-6)
            elif r["why"]:
                assert r["why"].startswith(f"{absent.sum()} of ")
    assert computed


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ({"adv_estimator": "optimal_token_baseline"}, "it needs the probabilities of every token"),
        ({"adv_estimator": "gae"}, "it needs the critic's value of every token"),
        ({"adv_estimator": "gae", "gae.level": "turn"}, "the critic's values of first tokens"),
        (
            {"adv_estimator": "gigpo", "gigpo.enable_similarity": True},
            "states that are joined by the similarity",
        ),
        ({"kl_ctrl.kl_coef": 0.1}, "the KL in the reward is in credit/ alone"),
        ({"rollout_correction.rollout_rs": "token_k1"}, "the tokens that were rejected are in credit/ alone"),
        ({"adv_estimator": "gpg", "filter_groups.metric": "seq_reward"}, "the groups that were trained are"),
        (
            {"adv_estimator": "m_grpo", "m_grpo.main_agent": "writer", "m_grpo.sub_calls": 3},
            "which calls were drawn is in credit/ alone",
        ),
        ({"adv_estimator": "gdpo", "gdpo_reward_keys": ["taste"]}, "taste of algorithm.gdpo_reward_keys"),
        ({"adv_estimator": "mine"}, "mine is an estimator of a plug-in"),
    ],
)
def test_what_the_records_lack_is_named(algorithm: dict[str, Any], why: str, tmp_path: Path) -> None:
    case = make_case(tmp_path, 1, {"adv_estimator": "grpo"}, credit=False)
    case.run["config"] |= {f"algorithm.{key}": value for key, value in algorithm.items()}
    rows = [r for r in run_script([case])[0]["path"] if r]
    assert any(r["why"].startswith(why) for r in rows), rows[0]
    for r in rows:
        assert r["terms"][-1]["value"] == pytest.approx(r["reward"]), "the way to the reward is there"
        if r["why"]:
            assert r["advantage"] is None and r["why"] in r["line"] and not r["marked"]


def test_what_differs_from_the_record_is_marked(tmp_path: Path) -> None:
    right, advantage, reward = (make_case(tmp_path, 3, {"adv_estimator": "rloo"}) for _ in range(3))
    for case in (right, advantage, reward):
        case.run["calls"]["team_reward"] = {"all": 99.0}  # what the record says of it is not read
    row = int(right.tokens.argmax())
    advantage.run["credit"]["1"]["advantage"][row] += 2e-5
    number = column(reward.run["episodes"], "traj_uid").index(reward.keys[row].split("/")[0])
    reward.run["episodes"]["team_reward"] = column(reward.run["episodes"], "team_reward")
    reward.run["episodes"]["team_reward"][number] += 0.5
    results = [
        rows_of(case, r)
        for case, r in zip((right, advantage, reward), run_script([right, advantage, reward]), strict=True)
    ]
    marked = [[i for i, r in enumerate(rows) if r["marked"]] for rows in results]
    episode_rows = [
        i for i, key in enumerate(right.keys) if key.split("/")[0] == right.keys[row].split("/")[0]
    ]
    assert marked == [[], [row], episode_rows]
    assert results[1][row]["error"] == pytest.approx(2e-5, rel=0.1)
    assert results[2][row]["rewardError"] == pytest.approx(0.5)


def test_without_credit_the_metrics_of_the_step_are_compared(tmp_path: Path) -> None:
    case, wrong = (make_case(tmp_path, 4, {"adv_estimator": "grpo"}, credit=False) for _ in range(2))
    wrong.run["metrics"]["agent/writer/advantage_abs"] = [9.0]
    checks = [r["checks"] for r in run_script([case, wrong])]
    names = {c["metric"] for c in checks[0]}
    assert names >= {
        "agent/solver_agent/advantage_abs",
        "agent/writer/zero_signal_groups",
        "critic/advantages/mean",
    }
    assert [c["metric"] for c in checks[0] if c["marked"]] == []
    assert [c["metric"] for c in checks[1] if c["marked"]] == ["agent/writer/advantage_abs"]


def test_equal_replies_of_several_episodes_have_the_mean_of_their_rewards(tmp_path: Path) -> None:
    case = make_case(tmp_path, 5, {"adv_estimator": "grpo"})
    rewards = [value if value is None else value + 1.0 for value in column(case.run["calls"], "reward")]
    case.run["calls"]["reward"] = rewards
    case.run["config"]["rollout.repeat_calls.writer"] = 2
    for row in rows_of(case, run_script([case])[0]):
        assert row["terms"][-2] == {"name": "mean of equal replies", "value": pytest.approx(1.0)}
        assert row["rewardError"] == 0


def test_the_way_is_one_line(tmp_path: Path) -> None:
    case = make_case(tmp_path, 6, {"adv_estimator": "grpo"}, {"alpha": 0.5, "shaping": "hop_weighted"})
    row = rows_of(case, run_script([case])[0])[0]
    names = [term["name"] for term in row["terms"]]
    assert (
        names[:4] == ["team (episode)", "local", "0.5 team + local", "hop_weighted"] and names[-1] == "reward"
    )
    assert (
        row["line"].startswith("team (episode) ")
        and f"group of {row['groupSize']} with spread" in row["line"]
    )
    assert row["line"].endswith(f" on {row['tokens']} tokens")
