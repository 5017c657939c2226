"""The miniature's models are made and kept: in this process, in two at once, and when killed."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

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


def entries(cache_dir: Path) -> list[str]:
    """What is in the folder of the models, but for locks."""
    home = cache_dir / "miniature" / "sums"
    return [path.name for path in home.iterdir() if path.suffix != ".lock"]


def sampled_rewards(folder: Path, template: str) -> tuple[float, float]:
    """Mean reward and format reward at temperature 1 on the validation problems of chains."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    problems = miniature.problems("validation")
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
    return fmean(rights), fmean(formats)


@pytest.mark.long
def test_the_base_that_comes_with_the_package_is_what_its_code_makes(tmp_path):
    """But for the rounding of another processor, which grows over 400 steps."""
    shipped, made = miniature.build(), miniature.build(cache_dir=tmp_path, progress=False)
    assert made.name == shipped.name
    assert {file.name for file in made.iterdir()} == {file.name for file in shipped.iterdir()}
    for template in ("r1_zero", "question_only"):
        before = sampled_rewards(shipped, template)
        assert sampled_rewards(made, template) == pytest.approx(before, abs=0.05)


@pytest.mark.slow
def test_two_builds_make_the_same_bits_and_leave_the_callers_random_numbers_and_threads_alone(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setitem(WORLDS, "sums", shortened(3))
    threads, made = torch.get_num_threads(), []
    for seed in (7, 8):
        torch.manual_seed(seed)
        where, state = tmp_path / str(seed), torch.get_rng_state()
        folder = miniature.build("base", world="sums", cache_dir=where, progress=False)
        assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
        names = ("model.safetensors", "tokenizer.json")
        made.append([(folder / name).read_bytes() for name in names])
    assert made[0] == made[1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_two_processes_at_once_build_one_model_and_show_where_it_will_be_kept(tmp_path):
    ended = [build.wait() for build in [start_build(tmp_path, steps=3) for _ in range(2)]]
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[0].stdout == ended[1].stdout
    folder = Path(ended[0].stdout.strip())
    assert {entry.name for entry in folder.iterdir()} >= {"model.safetensors", "tokenizer.json"}
    assert entries(tmp_path) == [folder.name]
    (shown,) = (each.stderr for each in ended if "Making" in each.stderr)
    assert shown.startswith(
        f"Making the miniature's base model of sums, once; it will be kept in {folder}"
    )
    assert "step 3/3" in shown and "loss" in shown


@pytest.mark.slow
def test_a_build_killed_while_writing_leaves_no_model_and_no_rubbish_for_the_next(tmp_path):
    build, written = start_build(tmp_path, steps=2, hangs=True), "tokenizer_config.json"
    build.wait_for(lambda: any(tmp_path.glob(f"miniature/sums/.base-*.partial/{written}")))
    assert build.alive, build.wait()
    build.kill()
    assert all(name.startswith(".") for name in entries(tmp_path))  # hidden from readers
    following = start_build(tmp_path, steps=2).wait()
    assert following.code == 0, following.stderr
    assert entries(tmp_path) == [Path(following.stdout.strip()).name]
