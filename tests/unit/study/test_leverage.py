"""The table of worlds × switches, from planted runs."""

from dataclasses import replace

import pytest

from tests.support.synthetic_study import make_plan, write_run
from trl_ablate import ConfigurationError
from trl_ablate.cli import leverage
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import beside, kept
from trl_ablate.study.planned import save_plan
from trl_ablate.study.report.curves import Run, Series
from trl_ablate.study.report.document import write_markdown
from trl_ablate.study.report.worlds_table import LENGTH, effects, leverage_page
from trl_ablate.study.store import RunStore

SWITCHES = {"grpo": {}, "none": {"baseline": "none"}, "kl": {"beta": 0.04}}
WORLDS = ("hills", "plain")
PLAN = replace(
    make_plan(
        {
            f"{world}.{switch}": {"dataset": f"miniature/{world}", "baseline": "group_mean"} | given
            for world in WORLDS
            for switch, given in SWITCHES.items()
        }
    ),
    against={f"{world}.{name}": f"{world}.grpo" for world in WORLDS for name in ("none", "kl")},
)
NOISE = (0.0, 0.01, -0.01)


def run(arm: str, seed: int, final: float, length: float) -> Run:
    """From 0.2 to `final` over ten steps, so that its area is half way between the two."""
    rewards = Series([0.0, 10.0], [0.2, final])
    lengths = Series([1.0 * i for i in range(1, 11)], [99.0] * 5 + [length] * 5)
    series = {"eval_reward": rewards, LENGTH: lengths}
    return Run(arm=arm, seed=seed, status="finished", series=series, planned_steps=10)


def planted(seeds: int = 3) -> list[Run]:
    """Only `none` acts, and only in the hills: -0.5 with a spread of 0.01, and 20 tokens less."""
    runs = []
    for seed, noise in enumerate(NOISE[:seeds]):
        for world, drop, length in (("hills", 0.5, 10), ("plain", 0.0, 30)):
            runs += [
                run(f"{world}.grpo", seed, 0.8 + 10 * noise, 30),
                run(f"{world}.none", seed, 0.8 - drop + 11 * noise, length),
                run(f"{world}.kl", seed, 0.8 + 10 * noise + NOISE[seed - 1], 30 + seed),
            ]
    return runs


def found(runs: list[Run]):
    return {(e.world, e.switch): e for e in effects(PLAN, runs)}


def test_an_effect_is_a_paired_difference_within_its_world():
    every = found(planted())
    effect = every["hills", "none"]
    # differences -0.50, -0.49, -0.51: s = 0.01, t(2) = 4.3027, half = 4.3027 * 0.01 / sqrt(3)
    final = effect.final.difference
    assert (final.mean, final.half_width) == pytest.approx((-0.5, 0.02484), abs=1e-5)
    assert effect.area.difference.mean == pytest.approx(-0.25)
    assert effect.length.difference.mean == -20 and effect.change == "baseline none"
    assert effect.final.verdict == "worse"
    assert [place for place, each in every.items() if each.separated] == [("hills", "none")]


def test_the_page_names_what_each_world_separates_and_what_has_too_few_seeds():
    page = write_markdown(leverage_page(PLAN, planted(), "command")).replace("\\", "")
    assert "- hills: none\n- plain: nothing so far\n- separated by no world so far: kl\n" in page
    assert "| none | grpo | −0.500 * | +0.000 |" in page
    page = write_markdown(leverage_page(PLAN, planted(2), "command"))
    assert "fewer than 3 seeds, no verdict yet: none, kl" in page


def test_only_runs_that_are_done_count_and_collapses_are_counted():
    runs = planted()
    of_arm = [one for one in runs if one.arm == "hills.none"]
    of_arm[2].status = "running"
    for one in of_arm[:2]:
        one.series["eval_reward"] = Series([0.0, 4.0, 8.0, 10.0], [0.2, 0.6, 0.1, 0.1])
    effect = found(runs)["hills", "none"]
    assert (effect.collapsed, effect.runs, effect.final.difference.n) == (2, 2, 2)


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ("hills.grpo", "kl", "arm 'kl' is not called WORLD.SWITCH"),
        ("hills.grpo", "plain.kl", "'plain.kl' is compared with 'hills.grpo', which is"),
    ],
)
def test_names_that_are_no_world_and_switch_are_refused(first, second, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        effects(replace(make_plan({first: {}, second: {}}), against={second: first}), [])


def test_the_command_writes_the_page_of_a_study_that_has_begun(tmp_path):
    file = tmp_path / "made_up.yaml"
    file.write_text("question: Does it work?\narms: [grpo.yaml]\nseeds: [0]\nprofile: miniature\n")
    store = RunStore(tmp_path / "runs")
    save_plan(PLAN, load_study(file), store.plans)
    for arm in PLAN.arms:
        for planned in arm.runs:
            final = 0.3 if arm.name == "hills.none" else 0.8
            rows = [{"step": at, "grpo_step": at, "seconds": at, "eval_reward": value}
                    for at, value in ((0, 0.2), (20, final))]  # fmt: skip
            if not store.directory(planned.id).path.exists():
                write_run(store, planned, arm.declared, iter(rows))
    words = [str(file), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "PAGE.md")]
    assert leverage.main([*words, "--keep_runs", "--profile", "miniature"]) == 0
    assert kept(beside(file)).keys() == set(PLAN.runs())
    page = (tmp_path / "PAGE.md").read_text()
    assert "| none | grpo | −0.500" in page and f"leverage {file} --profile miniature (" in page
