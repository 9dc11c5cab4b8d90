"""Whether trainer and engines are exact on the models of a run, before a worker starts: by
miniatures of the models, not by names.

Every obstacle of every model is found before the first error is raised, so that one run of the
command shows all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import cache

from verl.models.export_check import export_difference
from verl.models.files import check_files
from verl.models.loader import ModelPathError, check_causal_lm, resolve_dtype
from verl.models.lora import lora_spec
from verl.protocol.generate import RolloutError
from verl.trainer.config import CriticConfig, FSDPConfig, TrainedModelConfig
from verl.trainer.config.reward_model import CLASSIFIER
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.groups import GroupPlan
from verl.trainer.plan.placement import WorkerGroupSpec
from verl.trainer.plan.run import RunPlan
from verl.workers.engine.head_check import choose_head
from verl.workers.engine.layout_check import LayoutError, choose_layout, training_randomness
from verl.workers.rollout.server import check_served

logger = logging.getLogger(__name__)


def check_exactness(plan: RunPlan, device: str) -> list[str]:
    """Check the model of every worker group, log what differs from the fastest way, and return it.

    Args:
        plan: plan of the run.
        device: cpu or cuda, of the workers.

    Raises:
        ConfigError: all obstacles in one line: each says what differs by how much, and which keys
            would do.
    """
    started = time.perf_counter()
    with_critic = plan.critics
    obstacles: dict[str, None] = {}
    notes: dict[str, None] = {}
    check_once = cache(check_files)  # groups may start from the same folder
    for group in plan.groups:
        if group.config.rollout.name == CLASSIFIER:
            continue  # `check_reward_model` checks it
        where = f"model {group.model_path}"
        try:
            check_once(group.model_path, trust_remote_code=group.config.model.trust_remote_code)
        except ModelPathError as error:
            obstacles[str(error)] = None
            continue
        group_critic = group.critic if group.wg_id in with_critic else None
        is_trained = group.trained and plan.trains
        checks = list(_checks(group, device, is_trained, group_critic))
        for check in checks:
            try:
                notes |= dict.fromkeys(f"{where}: {note}" for note in check())
            except (LayoutError, ModelPathError, RolloutError) as error:
                obstacles[f"{where}: {error}"] = None
    if obstacles:
        raise ConfigError(" | ".join(obstacles))
    for note in notes:
        logger.info(note)
    logger.info("checked the numbers of the models in %.1f s", time.perf_counter() - started)
    return list(notes)


def _checks(
    group: GroupPlan,
    device: str,
    is_trained: bool,
    critic: CriticConfig | None,
) -> Iterator[Callable[[], list[str]]]:
    """Yield the checks of one worker group: trainer, critic, engine; each returns notes or raises."""
    if is_trained:
        model = group.config.model
        actor = group.config.actor
        yield lambda: layout_notes(
            model, actor.fsdp_config, device, "actor_rollout_ref.model", actor.use_prefix_grouper
        )
        if model.use_fused_kernels:
            yield lambda: head_notes(group)
        if not group.adapters:
            yield lambda: export_notes(group)
    if critic is not None:
        yield lambda: critic_notes(critic, device)
    if group.config.rollout.name == "hf":
        yield lambda: engine_notes(group)


def layout_notes(
    model: TrainedModelConfig,
    fsdp: FSDPConfig,
    device: str,
    key: str,
    share_prefixes: bool,
    values: bool = False,
) -> list[str]:
    """Return what a user has to know of the trainer's numbers on a model.

    Args:
        model: the trained model.
        fsdp: dtypes of the trainer.
        device: cpu or cuda.
        key: prefix of the model's keys.
        share_prefixes: whether tokens that rows have in common are to be run once.
        values: of a value model.

    Raises:
        LayoutError: rows are exact in no layout.
        ModelPathError: the configuration cannot be read.
    """
    config = check_causal_lm(model.path, trust_remote_code=model.trust_remote_code)
    choice = choose_layout(
        config,
        use_remove_padding=model.use_remove_padding,
        attention=model.attn_implementation,
        device=device,
        dtype=resolve_dtype(fsdp.dtype, device),
        share_prefixes=share_prefixes,
        values=values,
    )
    notes = [choice.note(key), training_randomness(config)]
    return [note for note in notes if note]


def head_notes(group: GroupPlan) -> list[str]:
    """Return what a user has to know of how log-probs are computed. Raises ModelPathError if the
    configuration cannot be read.
    """
    model = group.config.model
    config = check_causal_lm(model.path, trust_remote_code=model.trust_remote_code)
    adapters = [lora_spec(adapter.model) for adapter in group.adapters.values()]
    note = choose_head(config, adapters).note("actor_rollout_ref.model")
    return [] if note is None else [note]


def critic_notes(critic: CriticConfig, device: str) -> list[str]:
    """Return what a user has to know of the numbers of a critic; raises LayoutError as
    `layout_notes`.
    """
    try:
        return layout_notes(
            critic.model, critic.fsdp, device, "critic.model", critic.use_prefix_grouper, values=True
        )
    except ModelPathError:
        return []  # `check_critic` names the key of a path that is wrong


def export_notes(group: WorkerGroupSpec) -> list[str]:
    """Return nothing, or raise ModelPathError if transformers does not read back what an export of
    the group's model writes.
    """
    export_difference(
        check_causal_lm(group.model_path, trust_remote_code=group.config.model.trust_remote_code)
    )
    return []


def engine_notes(group: GroupPlan) -> list[str]:
    """Return what a user has to know of the `hf` engine's numbers on a group's model. Raises
    RolloutError if it cannot serve it.
    """
    return check_served(
        group.model_path, group.max_model_len, trust_remote_code=group.config.model.trust_remote_code
    )
