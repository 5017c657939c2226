"""What an arm on stored rollouts costs, in training phases of the same rollouts.

Both read the same stored rollouts, alternately for several rounds: a training of the reference with
its optimizer, of which the training phase is measured (`time/train`: forward, backward, update),
and the X-ray, of which everything is measured that follows the one-time start.
"""

import tempfile
from pathlib import Path

from trl_ablate.bench.modes import OfXray
from trl_ablate.bench.timing import Result, ratio, timed
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.rewards import grader_of
from trl_ablate.xray.drawing import questions_of
from trl_ablate.xray.stored_rollouts import RolloutFolder
from trl_ablate.xray.taking import Point, make_trainer, take
from trl_ablate.xray.trainer import Sources


def bench(asked: OfXray) -> Result:
    """What `trl-ablate bench xray` publishes. The first batch of a round is not counted."""
    batches = asked.batches + 1
    sizes = dict.fromkeys(("generation_batch_size", "optimizer_batch_size"), asked.rows)
    resolved = load_recipe(asked.recipe, asked.profile, {**sizes, "report_to": "none"})
    per_batch = resolved.config.optimizer_steps_per_rollout
    with grader_of(resolved.task) as grader, tempfile.TemporaryDirectory() as folder:
        rollouts = RolloutFolder(Path(folder) / "rollouts")
        rollouts.begin({}, questions_of(resolved, batches, 0))
        sources = Sources(rollouts, rollouts.questions(), batches, 0, grader, Path(folder))
        take(resolved, Point(None), sources, draws=True)
        training: list[float] = []
        arm: list[float] = []
        for _ in range(asked.rounds):
            trainer = make_trainer(resolved, sources, steps=batches * per_batch, max_grad_norm=1.0)
            trainer.reads(sources)
            trainer.train()
            rows = trainer.state.log_history
            steps = [row["time/train"] for row in rows if "time/train" in row]
            training += [sum(steps[i : i + per_batch]) for i in range(0, len(steps), per_batch)][1:]
            taken, _ = take(resolved, Point(None), sources)
            arm += taken.seconds_B.tolist()[1:]
    table = [
        timed(name, "s/batch", seconds) | {"ratio": ratio(seconds, training)}
        for name, seconds in (("training phase", training), ("an arm on stored rollouts", arm))
    ]
    title = f"an arm of an X-ray, {asked.rows} completions a batch, {asked.recipe}"
    return title, table, {"training phases per arm and batch": ratio(arm, training)}
