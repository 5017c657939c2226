"""The variants of the world of chains."""

from dataclasses import replace

import pytest

from trl_ablate.miniature.corpus import corpus
from trl_ablate.miniature.registry import WORLDS
from trl_ablate.miniature.worlds.chains import ANSWERED, CHAINS
from trl_ablate.miniature.worlds.ladder import FORMATS, HARD, NOISY
from trl_ablate.miniature.worlds.ladder import WORLDS as VARIANTS


def test_a_fifth_of_the_noisy_references_is_wrong_in_training_and_none_in_evaluation():
    right, noisy = ANSWERED.questions("train"), NOISY.task.questions("train")
    assert [each.question for each in noisy] == [each.question for each in right]
    wrong = [n.answer != r.answer for n, r in zip(noisy, right, strict=True)]
    assert sum(wrong) / len(wrong) == pytest.approx(0.2, abs=0.02)
    assert NOISY.task.questions("validation") == ANSWERED.questions("validation")
    assert noisy == NOISY.task.questions("train")


def test_the_noise_is_in_the_data_and_not_in_the_base():
    """So a run may take the base of chains."""
    assert replace(NOISY, name=CHAINS.name, files=CHAINS.files, task=CHAINS.task) == CHAINS
    right = [next(corpus(world, seed=0)) for world in (NOISY, CHAINS)]
    assert right[0] == right[1]


def test_the_others_have_the_questions_of_chains():
    for world in VARIANTS:
        assert world.task.questions("validation") == ANSWERED.questions("validation")


def test_hard_and_formats_differ_from_chains_in_what_they_teach():
    assert max(HARD.format_shares.values()) < 0.1
    assert FORMATS.template_shares["reasoning_xml"] > FORMATS.template_shares["r1_zero"]


def test_the_models_of_the_ladder_grow():
    from trl_ablate.miniature.teaching import new_model
    from trl_ablate.miniature.tokens import tokenizer_of

    words = tokenizer_of(WORLDS["chains"])
    sizes = [
        new_model(words, WORLDS[name].shape).num_parameters()
        for name in ("chains", "chains-0.4m", "chains-3m")
    ]
    assert sizes == [126_336, 465_664, 3_489_792]
