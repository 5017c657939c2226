"""Which runs of a study its X-ray makes needless."""

from collections.abc import Iterator

from trl_ablate.study.planned import Plan
from trl_ablate.study.store import RunStore
from trl_ablate.xray.xray_page import Xray


def saved_runs(result: Xray, plan: Plan, store: RunStore) -> Iterator[str]:
    """A line for each arm whose runs can be saved, and the total.

    The runs of an inert arm repeat those of the arm that it is compared with. An arm that only
    rescales is named, too, but its runs are kept in the count: what it does without Adam, or to
    clipping by norm, is not seen here.
    """
    left = {
        arm.name: sum(not store.state(run.id).done for run in arm.runs)
        for arm in plan.arms
        if arm.name in result.arms and arm.name != result.reference
    }
    saved = 0
    for name, runs in left.items():
        words = {point.verdicts[name].words for point in result.points}
        if words == {"inert"}:
            saved += runs
            yield f"{name}: its {runs} runs repeat those of {result.against[name]}; leave it out"
        elif words <= {"inert", "only rescales"}:
            yield (
                f"{name}: its {runs} runs differ from {result.against[name]} by a factor of the "
                "gradient alone, which Adam undoes; expect no difference"
            )
    total = sum(not store.state(run).done for run in plan.runs())
    yield f"{saved} of {total} runs to do can be saved"
