"""`trainer.log_tokens`: log-probs of single tokens before and after an update, of drawn rows."""

from __future__ import annotations

import logging

import numpy as np

from verl.protocol import DataProto
from verl.trainer.ppo.credit.record import NAMES
from verl.trainer.ppo.team import TeamWorkers
from verl.utils.names import draw_place

logger = logging.getLogger(__name__)


class TokenLog:
    """Draws rows of a step, and adds their log-probs after its update. Says at the start what that
    costs.

    Args:
        count: `trainer.log_tokens`.
        team: computes log-probs.
        episodes: of a step, each with one row at least.
        epochs: `actor_rollout_ref.actor.ppo_epochs`.
    """

    def __init__(self, count: int, team: TeamWorkers, episodes: int, epochs: int) -> None:
        self.count = count
        self.team = team
        # a forward pass is about a third of forward and backward
        share = min(count / episodes, 1.0) / 3 / epochs
        logger.info(
            "trainer.log_tokens=%d: one more forward pass of %d rows after each update; a step has at "
            "least %d rows, so it takes up to %.1f %% of the time of an update",
            count,
            count,
            episodes,
            100 * share,
        )

    def draw(self, batch: DataProto) -> None:
        """Set the column `logged` of a whole step, bool: whether the tokens of a row are recorded."""
        batch.non_tensor_batch["logged"] = draw_rows(batch, self.count)

    def add(self, batch: DataProto) -> None:
        """Set the column `log_prob_after` of rows that `draw` has marked, under the present weights: a
        list with a number for each token of the response; None for the others.
        """
        rows = np.flatnonzero(batch.non_tensor_batch["logged"].astype(bool))
        afters = np.full(len(batch), None, dtype=object)
        if len(rows):
            part = batch.select_idxs(rows)
            log_probs = self.team.compute_log_prob(part).batch["old_log_probs"]
            width = part.batch["responses"].shape[1]
            lengths = part.batch["attention_mask"][:, -width:].sum(dim=1).tolist()
            for row, numbers, length in zip(rows, log_probs.tolist(), lengths, strict=True):
                afters[row] = numbers[:length]
        batch.non_tensor_batch["log_prob_after"] = afters


def draw_rows(batch: DataProto, count: int) -> np.ndarray:
    """Return whether the tokens of rows are recorded, `[bsz]` bool: `count` rows with a kept token,
    or all.

    Args:
        batch: rows of a step.
        count: `trainer.log_tokens`.
    """
    columns = batch.non_tensor_batch
    trainable = np.flatnonzero(batch.batch["response_mask"].bool().any(dim=1).cpu().numpy())
    names = ["/".join(str(columns[name][row]) for name in NAMES) for row in trainable]
    places = sorted(range(len(trainable)), key=lambda index: draw_place(names[index]))[:count]
    is_logged = np.zeros(len(batch), dtype=bool)
    is_logged[trainable[places]] = True
    return is_logged
