"""Studies: strict files, the proof that arms differ only where declared, ids, estimates."""

import json
from pathlib import Path

import pytest

from tests.support.synthetic_study import learning_rows, make_plan, write_run, write_study
from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.cli.study import main
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.identity import portable
from trl_ablate.study.cleaning import find_rubbish, remove
from trl_ablate.study.definition import load_study
from trl_ablate.study.estimate import estimate, measure
from trl_ablate.study.planned import identity, in_order, run_id, save_plan, saved_plan
from trl_ablate.study.resolution import resolve_plan
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

STUDIES = sorted((SHIPPED / "studies").glob("*/study.yaml"))
SMALL = "question: q\nseeds: [0, 1]\nprofile: miniature\n"


@pytest.fixture
def write(tmp_path):
    """`write(study, name=recipe, ...)`: recipes `name.yaml` beside a study; the study's path."""

    def write(study: str, **recipes: str) -> Path:
        for name, text in recipes.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / "study.yaml").write_text(study)
        return tmp_path / "study.yaml"

    return write


@pytest.mark.sample(6)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_every_shipped_study_is_proven(path):
    study = load_study(path)
    plan = resolve_plan(study)
    assert plan.study == path.parent.name
    assert plan.profile.startswith(("miniature", "smollm2", "h100"))
    at_each_level = len(plan.arms) // 2 if plan.design else 1
    assert len(study.seeds) * at_each_level >= 3
    assert all(arm.grpo_steps > 0 and arm.evaluations > 1 for arm in plan.arms)


def test_an_arm_that_studies_share_is_run_once():
    studies = [study for study in map(load_study, STUDIES) if study.profile == "miniature-sums"]
    plans = [resolve_plan(study) for study in studies]
    reference = load_recipe(SHIPPED / "grpo.yaml", "miniature-sums").to_dict()["settings"]
    assert sum(run_id(portable(reference, {}), 0) in plan.runs() for plan in plans) > 5


def test_the_two_names_of_one_recipe_are_other_runs():
    plan = resolve_plan(load_study(SHIPPED / "studies" / "aa" / "study.yaml"))
    runs = [{run.id for run in arm.runs} for arm in plan.arms]
    first, again = ({run_id.partition("-")[0] for run_id in ids} for ids in runs)
    assert first == again and not runs[0] & runs[1]
    assert not any(arm.declared for arm in plan.arms)


def test_the_identity_survives_the_disk_and_ignores_names(tmp_path):
    settings = load_recipe(SHIPPED / "dapo.yaml", "miniature").to_dict()["settings"]
    again = json.loads(json.dumps(settings, default=str))
    assert identity(settings) == identity(again)
    moved = {**again, "output_dir": str(tmp_path), "arm": "x", "study": "y", "seed": 7}
    assert identity(moved) == identity(settings)
    assert identity({**again, "epsilon": 0.3}) != identity(settings)


def test_arms_that_differ_where_they_do_not_declare_it_are_refused(write):
    base = "use_cpu: true\nbf16: false\nlearning_rate: 1.0e-5\ntemperature: {}\n"
    study = write(
        SMALL + "arms: [first.yaml, second.yaml]\n",
        one=base.format("1.0"),
        other=base.format("0.7"),
        first="extends: one.yaml\nbeta: 0.01\n",
        second="extends: other.yaml\nbeta: 0.02\n",
    )
    with pytest.raises(ConfigurationError, match="'first' and 'second' differ in 'temperature'"):
        resolve_plan(load_study(study))
    write(study.read_text(), second="extends: one.yaml\nbeta: 0.02\n")
    plan = resolve_plan(load_study(study))
    assert [arm.declared for arm in plan.arms] == [{"beta": 0.01}, {"beta": 0.02}]
    write(study.read_text(), second="extends: other.yaml\nbeta: 0.02\ntemperature: 0.7\n")
    plan = resolve_plan(load_study(study))
    assert plan.arms[1].declared == {"beta": 0.02, "temperature": 0.7}
    assert plan.arms[0].values == {"beta": 0.01, "temperature": 1.0}


def test_an_own_base_is_under_the_profile_and_an_arm_that_it_is_itself_is_not(write):
    study = write(
        SMALL + "arms: [first.yaml, second.yaml]\n",
        own="use_cpu: true\nbf16: false\ngrpo_steps: 3\n",
        first="extends: own.yaml\n",
        second="extends: own.yaml\nbeta: 0.02\n",
    )
    assert [arm.grpo_steps for arm in resolve_plan(load_study(study)).arms] == [60, 60]
    alone = write(SMALL + "arms: [own.yaml]\n")
    assert [arm.grpo_steps for arm in resolve_plan(load_study(alone)).arms] == [3]
    mixed = write(SMALL + "arms: [own.yaml, second.yaml]\n")
    with pytest.raises(ConfigurationError, match="'own' and 'second' differ in 'grpo_steps'"):
        resolve_plan(load_study(mixed))


def test_a_profile_of_its_own_is_an_undeclared_difference(write):
    study = write(
        SMALL.replace("profile: miniature", "profile: auto") + "arms: [grpo.yaml, mine.yaml]\n",
        mine="extends: grpo.yaml\nprofile: rtx4090\nbeta: 0.1\n",
    )
    with pytest.raises(ConfigurationError, match="beyond what they declare"):
        resolve_plan(load_study(study))


BROKEN = {
    "column": ("template: ask.txt\n", "{question} {hint}", "names the column 'hint'"),
    "no question": ("template: ask.txt\n", "Answer!", "does not contain {question}"),
    "Jinja": ("template: ask.jinja\n", "{% if question %}", "is not a Jinja template"),
    "of the Hub": (
        "template: ask.txt\ndataset: org/data\n", "Answer!", "does not contain {question}"
    ),
    "eval set": (
        "template: ask.txt\neval_sets: {mine: {dataset: ask.csv}}\n", "{question}", "ask.csv"
    ),
    "no template": ("template: absent.txt\n", "", "there is no template file absent.txt"),
    "reward": ("reward_funcs: ['absent.py:score']\n", "", "there is no file absent.py"),
    "tool": ("tools: ['ask.py:search']\n", "def search(:", "cannot be imported: SyntaxError"),
    "few": ("dataset: ask.jsonl\n", '{"question": "1+1", "answer": "2"}', "there are 1 questions"),
    "bad row": ("dataset: ask.jsonl\n", '{"question": 3}', "line 1"),
    "quantized": ("load_in_4bit: true\n", "", "load_in_4bit needs use_peft"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_refuses_what_its_runs_would_refuse(write, tmp_path, case):
    settings, content, said = BROKEN[case]
    name = next((word.strip("'[]}{:").partition(":")[0] for word in settings.split()
                 if word.strip("'[]}").startswith("ask.")), "unused")  # fmt: skip
    (tmp_path / name).write_text(content)
    broken = f"extends: grpo.yaml\nreward: r1_zero\n{settings}"
    study = write(SMALL + "arms: [grpo.yaml, broken.yaml]\n", broken=broken)
    with pytest.raises(ConfigurationError, match=f"arm 'broken': .*{said}"):
        resolve_plan(load_study(study), to_run=True)
    assert main(["plan", str(study), "--runs", str(tmp_path / "runs")]) == 2
    assert resolve_plan(load_study(study)).arms  # for the report of runs that are done


def test_where_a_recipe_reports_to_is_nothing_that_a_study_compares(write):
    text = "extends: grpo.yaml\nreport_to: none\noutput_dir: elsewhere\n"
    study = write(SMALL + "arms: [a.yaml, b.yaml]\n", a=text, b=text + "scale_rewards: none\n")
    plan = resolve_plan(load_study(study))
    assert [arm.declared for arm in plan.arms] == [{}, {"scale_rewards": "none"}]


def test_an_override_must_not_replace_what_an_arm_ablates(write):
    study = write(SMALL + "arms: [grpo.yaml, lr_1e-5.yaml]\noverrides: {learning_rate: 1e-5}\n")
    with pytest.raises(ConfigurationError, match="'learning_rate' replaces what arm 'lr_1e-5'"):
        resolve_plan(load_study(study))


def test_overrides_and_stopping_rules_reach_every_arm(write):
    study = write(
        SMALL + "arms: {a: grpo.yaml, b: {recipe: grpo.yaml, overrides: {temperature: 0.7}}}\n"
        "overrides: {grpo_steps: 8}\nstopping: {max_grad_norm: 0.5}\n"
    )
    plan = resolve_plan(load_study(study))
    assert [arm.grpo_steps for arm in plan.arms] == [8, 8]
    assert [arm.declared for arm in plan.arms] == [{}, {"temperature": 0.7}]
    for arm in plan.arms:
        assert {"--grpo_steps=8", "--max_grad_norm=0.5"} <= set(arm.runs[0].words)
    words = plan.arms[1].runs[1].words
    resolved = load_recipe(words[0], overrides=words[1:]).to_dict()["settings"]
    assert (
        run_id(portable(resolved, {}), 1) == plan.arms[1].runs[1].id
    )  # the settings that the process resolves


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("question: q\nseeds: [0]\n", "has no `arms`"),
        (SMALL + "arms: [grpo.yaml]\nseed: 1\n", "unknown key 'seed'; did you mean 'seeds'"),
        (SMALL + "arms: [grop.yaml]\n", "'grop.yaml' does not exist; did you mean 'grpo.yaml'"),
        (SMALL + "arms: [grpo.yaml, grpo.yaml]\n", "arm 'grpo' occurs twice"),
        (SMALL.replace("[0, 1]", "[0, 0]") + "arms: [grpo.yaml]\n", "give each once"),
        (SMALL.replace("[0, 1]", "[0, x]") + "arms: [grpo.yaml]\n", "seeds is the list"),
        (SMALL + "arms: [grpo.yaml]\noverrides: {output_dir: x}\n", "cannot be overridden"),
        (SMALL + "arms: {a: {recipe: grpo.yaml, seeds: [5]}}\n", "paired by position"),
        (SMALL + "arms: {a: {recipes: grpo.yaml}}\n", "unknown key 'recipes'"),
        (SMALL + "arms: {a: 3}\n", "allowed: a recipe file"),
        (SMALL + "arms: [grpo.yaml]\ndecide_on: median\n", "one of final, best, auc"),
        (SMALL + "arms: [grpo.yaml, dapo.yaml]\nagainst: {dapo: gpro}\n",
         "against has 'gpro', which is not an arm; did you mean 'grpo'"),
        (SMALL + "arms: [grpo.yaml, dapo.yaml]\nagainst: {grpo: dapo}\n", "the first arm"),
        (SMALL + "arms: [grpo.yaml, dapo.yaml]\nagainst: {dapo: dapo}\n", "in a circle"),
        (SMALL + "arms: [grpo.yaml, dapo.yaml, gspo.yaml]\nagainst: {dapo: gspo, gspo: dapo}\n",
         "against compares dapo with gspo in a circle"),
    ],
)  # fmt: skip
def test_what_is_no_study(write, text, complaint):
    with pytest.raises(ConfigurationError) as raised:
        load_study(write(text))
    assert complaint in str(raised.value)


def test_the_kept_plan_holds_while_its_files_do(write):
    study = load_study(write(SMALL + "arms: [grpo.yaml, mine.yaml]\n",
                             mine="extends: grpo.yaml\nbeta: 0.1\n"))  # fmt: skip
    plans = study.path.parent / "studies"
    assert saved_plan(study, plans) is None
    plan = resolve_plan(study)
    save_plan(plan, study, plans)
    assert saved_plan(study, plans) == plan
    write(study.path.read_text(), mine="extends: grpo.yaml\nbeta: 0.2\n")
    assert saved_plan(study, plans) is None


def test_seeds_come_before_arms():
    """A study that is stopped early has all arms with fewer seeds, not fewer arms."""
    plan = make_plan({"a": {"top": 1}, "b": {"top": 2}, "same": {"top": 1}}, seeds=(0, 1))
    assert [(run.words[2], run.seed) for run in in_order(plan)] == [
        ("same", 0), ("b", 0), ("same", 1), ("b", 1),
    ]  # fmt: skip


def test_estimates_come_from_finished_runs(tmp_path):
    arms = {"a": {"top": 0.8}, "b": {"top": 0.5}}
    plan, store = make_plan(arms), RunStore(tmp_path)
    assert estimate(StudyRuns(plan, store)).hours() is None
    write_run(store, plan.arms[0].runs[0], arms["a"], learning_rows(0, 0.8))
    measured = measure(store, plan.arms[0].runs[0].id)
    # 20 steps of 1.4 s and 6 evaluations of 0.4 s in a run of 60 s: 29.6 s are overhead
    assert measured is not None
    assert measured.overhead == pytest.approx(29.6)
    assert measured.seconds(plan.arms[0]) == pytest.approx(60.0)
    foreseen = estimate(StudyRuns(plan, store))
    counts = len(foreseen.runs), len(foreseen.done), foreseen.unmeasured
    assert counts == (6, 1, ("b",))
    assert foreseen.hours() == pytest.approx(5 * 60 / 3600)
    assert foreseen.hours(2) == pytest.approx(3 * 60 / 3600)  # five runs on two slots


def test_states_of_a_run(tmp_path):
    settings = {"top": 0.8}
    plan, store = make_plan({"a": settings}, seeds=range(6)), RunStore(tmp_path)
    runs = plan.arms[0].runs
    rows = list(learning_rows(0, 0.8))
    write_run(store, runs[0], settings, iter(rows))
    write_run(store, runs[1], settings, iter(rows), status="stopped", reason="loss is not finite")
    keyboard = "interrupted from the keyboard"
    write_run(store, runs[2], settings, iter(rows), status="stopped", reason=keyboard)
    write_run(store, runs[3], settings, iter(rows), status="running")
    write_run(store, runs[4], {"top": 0.7}, iter(rows))  # another configuration under this name
    found = [store.state(run.id).status for run in runs]
    assert found == ["finished", "stopped", "interrupted", "interrupted", "to do", "to do"]
    lock = store.lock(runs[3].id)
    assert lock.acquire()
    assert store.state(runs[3].id).status == "running"
    assert not store.lock(runs[3].id).acquire()
    lock.release()
    assert store.state(runs[3].id).status == "interrupted"


def test_cleaning_keeps_files_of_the_user_in_a_run(tmp_path):
    plan, store = write_study(tmp_path / "runs", {"a": {"top": 0.8}, "b": {"top": 0.5}})
    mine, whole, *_ = (store.directory(run.id).path for arm in plan.arms for run in arm.runs)
    (mine / "checkpoint-10").mkdir()
    kept = ("checkpoint-2.bak/model.safetensors", "thesis.tex", "rollouts/step_final.jsonl")
    for name in kept:
        (mine / name).parent.mkdir(exist_ok=True)
        (mine / name).write_text("mine")
    for rubbish in find_rubbish(StudyRuns(plan, store), checkpoints=True):
        assert rubbish.paths == (mine / "checkpoint-10",)
    (whole / ".running").touch()
    for rubbish in find_rubbish(StudyRuns(plan, store), results=True):
        assert remove(rubbish, store)
    left = {str(path.relative_to(mine)) for path in mine.rglob("*") if path.is_file()}
    assert left == {*kept} and not whole.exists()


def test_cleaning_keeps_results_and_what_others_need(tmp_path):
    arms = {"a": {"top": 0.8}, "b": {"top": 0.5}}
    plan, store = write_study(tmp_path / "runs", arms)
    finished, failed = plan.arms[0].runs[0], plan.arms[1].runs[0]
    store.directory(failed.id).update(status="failed", reason="it died")
    (store.directory(finished.id).path / "checkpoint-10").mkdir()
    assert [rubbish.run_id for rubbish in find_rubbish(StudyRuns(plan, store))] == [failed.id]
    with_checkpoints = find_rubbish(StudyRuns(plan, store), checkpoints=True)
    assert {path.name for rubbish in with_checkpoints for path in rubbish.paths} == {
        failed.id, "checkpoint-10",
    }  # fmt: skip
    assert len(find_rubbish(StudyRuns(plan, store), results=True)) == 6
    store.plans.mkdir()
    kept = {"arms": [{"runs": [{"id": finished.id}]}]}
    (store.plans / "another.json").write_text(json.dumps(kept))
    assert len(find_rubbish(StudyRuns(plan, store), results=True)) == 5

    rubbish = find_rubbish(StudyRuns(plan, store))[0]
    lock = store.lock(failed.id)
    assert lock.acquire() and not remove(rubbish, store)  # another process uses it
    lock.release()
    assert remove(rubbish, store)
    assert store.state(failed.id).status == "to do"


@pytest.mark.parametrize(
    ("eval_steps", "evaluations"), [("4", 3 + 1), ("0.25", 4 + 1), ("0.5", 2 + 1)]
)
def test_evaluations_are_foreseen_for_fractions_too(write, eval_steps, evaluations):
    """For ten GRPO steps: after 4, 8, 10; after 3, 6, 9, 10; after 5, 10; and before the first."""
    study = write(
        SMALL + f"arms: [grpo.yaml]\noverrides: {{grpo_steps: 10, eval_steps: {eval_steps}}}\n"
    )
    assert resolve_plan(load_study(study)).arms[0].evaluations == evaluations


@pytest.mark.parametrize(
    ("study", "millions", "dataset"),
    [
        ("chains_hard_groups", 0.13, "miniature/chains-hard"),
        ("chains_objective_3m", 3.5, "miniature/chains-3m"),
        ("chains_sft_start", 0.13, "miniature/chains"),
        ("gym_objective", 0.13, "miniature/gym-chain_sum"),
        ("std_dev", 0.37, "miniature/sums"),
    ],
)
def test_a_plan_knows_whose_answers_it_gives(study, millions, dataset):
    file = SHIPPED / "studies" / study / "study.yaml"
    ((size, data),) = resolve_plan(load_study(file)).miniatures
    assert (float(f"{size:.2g}"), data) == (millions, dataset)


def test_references_of_their_own_and_notes_reach_the_kept_plan(write):
    study = load_study(write(
        SMALL + "arms: [grpo.yaml, off_policy_e1_tb64.yaml, dapo.yaml]\n"
        "against: {dapo: off_policy_e1_tb64}\nnotes: [One learning rate for all.]\n"
    ))  # fmt: skip
    plan, plans = resolve_plan(study), study.path.parent / "studies"
    assert plan.against == {"dapo": "off_policy_e1_tb64"}
    assert plan.notes == ["One learning rate for all."]
    save_plan(plan, study, plans)
    assert saved_plan(study, plans) == plan


@pytest.mark.parametrize(
    ("study", "arm", "differs"),
    [
        ("baselines", "no_baseline", {"baseline", "surrogate"}),  # the surrogate is inert there
        ("baselines", "no_baseline_half_lr", {"learning_rate"}),
        ("papers", "dapo", {"length_norm", "loss_type", "epsilon_high",
                            "mask_truncated_completions"}),
        ("papers", "gspo", {"epsilon", "epsilon_high", "importance_sampling_level"}),
        ("papers", "cispo", {"length_norm", "loss_type", "epsilon_high", "surrogate"}),
    ],
)  # fmt: skip
def test_shipped_arms_are_compared_with_their_match(study, arm, differs):
    """Changes that a paper's arm needs but does not study (smaller batch, no std) are in both."""
    plan = resolve_plan(load_study(SHIPPED / "studies" / study / "study.yaml"))
    values = {planned.name: planned.values for planned in plan.arms}
    ours, reference = values[arm], values[plan.against[arm]]
    assert {key for key in ours if ours[key] != reference[key]} == differs
    assert plan.notes
