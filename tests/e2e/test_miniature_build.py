"""The miniature's models are made, kept and read: in this process, in two at once, and when killed.

The accuracies are measured on the models of the user's cache folder, made here if need be; the
rest builds shortened lessons in folders of its own.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.warm import Running, fork
from trl_ablate import miniature
from trl_ablate.miniature import World, cache, corpus
from trl_ablate.miniature.registry import WORLDS
from trl_ablate.miniature.worlds.sums import SUMS
from trl_ablate.rewards import score_batch


def shortened(steps: int) -> World:
    return replace(SUMS, lesson=SUMS.lesson._replace(steps=steps))


def start_build(cache_dir: Path, steps: int, *, hangs: bool = False) -> Running:
    """A build whose lesson is so long, in a process of its own; it may hang before it is moved."""
    return fork(build_shortened, cache_dir, steps, hangs)


def build_shortened(cache_dir: Path, steps: int, hangs: bool) -> None:
    WORLDS["sums"] = shortened(steps)
    if hangs:
        cache.os.replace = lambda *paths: time.sleep(600)
    sys.stdout.write(f"{miniature.build('base', world='sums', cache_dir=cache_dir)}\n")


def models_in(cache_dir: Path) -> list[str]:
    """What a reader could mistake for a model; locks and half-written folders are hidden."""
    return [
        path.name for path in (cache_dir / "miniature" / "sums").iterdir() if path.name[0] != "."
    ]


def sampled_rewards(
    folder: Path, template: str, size: int = 512, world: str = "sums"
) -> tuple[float, float]:
    """Mean reward and format reward at temperature 1 on validation problems."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    problems = miniature.problems("validation", size, world=world)
    asked = [corpus.Text(template, problem["question"], "") for problem in problems]
    texts = [corpus.prompt(text, tokenizer) for text in asked]
    prompts = tokenizer(texts, return_tensors="pt", padding=True)
    torch.manual_seed(0)
    ids = model.generate(**prompts, max_new_tokens=60, do_sample=True, top_k=0)
    ids = ids[:, prompts["input_ids"].shape[1] :]
    completions = tokenizer.batch_decode(ids, skip_special_tokens=True)
    scores = score_batch(template, completions, [problem["answer"] for problem in problems])
    formats = [bool(score["format_reward"]) for score in scores]
    rights = [bool(score["format_reward"] and score["answer_reward"]) for score in scores]
    return sum(rights) / size, sum(formats) / size


@pytest.mark.sample(1)
@pytest.mark.parametrize("template", ["r1_zero", "question_only", "reasoning_xml", "think_xml"])
def test_the_base_of_chains_is_right_at_times(template):
    right, _ = sampled_rewards(miniature.build("base"), template, world="chains")
    assert 0.1 < right < 0.3


@pytest.mark.long
def test_the_base_that_comes_with_the_package_is_what_its_code_makes(tmp_path):
    """But for the rounding of another processor, which grows over 400 steps."""
    shipped, made = miniature.build(), miniature.build(cache_dir=tmp_path, progress=False)
    assert made.name == shipped.name
    assert {file.name for file in made.iterdir()} == {file.name for file in shipped.iterdir()}
    for template in ("r1_zero", "question_only"):
        rewards, formats = zip(
            *(sampled_rewards(each, template, 1221, "chains") for each in (shipped, made)),
            strict=True,
        )
        assert rewards[0] == pytest.approx(rewards[1], abs=0.05)
        assert formats[0] == pytest.approx(formats[1], abs=0.05)


@pytest.mark.long
def test_each_sft_stage_is_better_than_the_one_before():
    folders = [miniature.build(stage, world="sums") for stage in SUMS.lessons()]
    rewards = [sampled_rewards(folder, "r1_zero")[0] for folder in folders]
    assert rewards == sorted(rewards)
    assert rewards[-1] > 2 * rewards[1]
    assert rewards[-1] < 0.7  # reinforcement learning still has somewhere to go


@pytest.mark.slow
def test_two_builds_make_the_same_bits(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(WORLDS, "sums", shortened(5))
    once, again = (
        miniature.build("base", world="sums", cache_dir=tmp_path / name, progress=False)
        for name in "ab"
    )
    assert (once / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert (once / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_build_leaves_the_callers_random_numbers_and_threads_alone(tmp_path, monkeypatch):
    import torch

    monkeypatch.setitem(WORLDS, "sums", shortened(2))
    torch.manual_seed(7)
    threads, expected = torch.get_num_threads(), torch.rand(1)
    torch.manual_seed(7)
    miniature.build("base", world="sums", cache_dir=tmp_path, progress=False)
    assert torch.rand(1) == expected
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_a_build_says_what_it_does_and_where_it_will_be_kept(tmp_path):
    ended = start_build(tmp_path, steps=3).wait()
    folder, shown = Path(ended.stdout.strip()), ended.stderr
    assert ended.code == 0, shown
    assert shown.startswith(
        f"Making the miniature's base model of sums, once; it will be kept in {folder}"
    )
    assert "step 3/3" in shown and "loss" in shown
    assert {entry.name for entry in folder.iterdir()} >= {"model.safetensors", "tokenizer.json"}


@pytest.mark.slow
def test_two_processes_at_once_build_one_model(tmp_path):
    ended = [build.wait() for build in [start_build(tmp_path, steps=10) for _ in range(2)]]
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[0].stdout == ended[1].stdout
    assert sum("Making" in each.stderr for each in ended) == 1
    assert len(models_in(tmp_path)) == 1
    assert not list((tmp_path / "miniature" / "sums").glob(".*.partial"))


@pytest.mark.slow
def test_a_build_killed_while_writing_leaves_no_model_and_no_rubbish_for_the_next(tmp_path):
    build, written = start_build(tmp_path, steps=2, hangs=True), "tokenizer_config.json"
    build.wait_for(lambda: any(tmp_path.glob(f"miniature/sums/.base-*.partial/{written}")))
    assert build.alive, build.wait()
    build.kill()
    assert models_in(tmp_path) == []
    following = start_build(tmp_path, steps=2).wait()
    assert following.code == 0, following.stderr
    assert models_in(tmp_path) == [Path(following.stdout.strip()).name]
    assert not list((tmp_path / "miniature" / "sums").glob(".*.partial"))
