"""Trimming and regrouping on batches small enough to read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_ablate.trainer import batching
from trl_ablate.trainer.batching import by_length, by_prompt, padded_fraction, regroup, trim
from trl_ablate.trainer.forward_passes import Passes


def batch(prompts: list[int], completions: list[int], width: tuple[int, int] = (4, 6)) -> dict:
    """Rows with these prompt and completion lengths; each id encodes its row and column."""
    rows, (left, right) = len(prompts), width
    marks = 100 * torch.arange(1, rows + 1)[:, None]
    return {
        "prompt_ids": marks + torch.arange(left),
        "prompt_mask": (torch.arange(left) >= left - torch.tensor(prompts)[:, None]).long(),
        "completion_ids": marks + 50 + torch.arange(right),
        "completion_mask": (torch.arange(right) < torch.tensor(completions)[:, None]).long(),
        "advantages": torch.arange(rows).float(),
        "old_per_token_logps": torch.randn(rows, right),
        "importance_sampling_ratio": torch.rand(rows, 1),
        "num_items_in_batch": torch.tensor(99),
    }


def lengths_of(batches) -> list[list[int]]:
    return [one["completion_mask"].sum(dim=1).tolist() for one in batches]


@pytest.mark.parametrize(
    ("rows", "multiple", "prompt", "completion"),
    [
        (batch([4], [0]), 1, 4, 2),  # two columns where every completion is masked
        (batch([4], [0], width=(4, 1)), 1, 4, 1),
        (batch([3, 5], [1, 5], width=(8, 7)), 4, 8, 7),  # as far as there are columns
        (batch([3], [3], width=(8, 8)), 4, 4, 4),
    ],
)
def test_trimmed_widths(rows, multiple, prompt, completion):
    trimmed = trim(rows, multiple)
    assert trimmed["prompt_ids"].size(1) == prompt
    assert trimmed["completion_ids"].size(1) == completion


def test_batches_of_unequal_width_are_padded_on_their_side():
    """With a ratio of 1: VESPO takes its log at padding, too, and 0 would take the whole row."""
    narrow, wide = batch([2], [3], (2, 3)), batch([3], [5], (3, 5))
    for one in (narrow, wide):
        one["importance_sampling_ratio"] = torch.full_like(one["old_per_token_logps"], 0.5)
    both = batching.concatenated([narrow, wide], padding_id=9)
    assert both["prompt_ids"].tolist() == [[9, 100, 101], [100, 101, 102]]
    assert both["completion_ids"].tolist() == [[150, 151, 152, 9, 9], [150, 151, 152, 153, 154]]
    assert both["completion_mask"].sum(dim=1).tolist() == [3, 5]
    assert both["importance_sampling_ratio"].tolist() == [[0.5, 0.5, 0.5, 1, 1], [0.5] * 5]


def test_regroup_sorts_within_a_step_and_not_across():
    parts = [batch([4, 4], lengths) for lengths in ([6, 1], [5, 2], [3, 6], [1, 2])]
    assert lengths_of(regroup(parts, 2, by_length)) == [[1, 2], [5, 6], [1, 2], [3, 6]]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=8, max_size=8))
def test_regrouping_loses_and_invents_no_row_and_can_be_taken_back(lengths):
    halves = [lengths[:4], lengths[4:]]
    parts = [batch([p for p, _ in half], [c for _, c in half]) for half in halves]
    parts[1]["advantages"] += 4
    regrouped = [trim(part) for part in regroup(parts, 2, by_length)]
    assert padded_fraction(regrouped) <= padded_fraction(parts)
    for drawn, part in zip(batching.as_drawn(regrouped), parts, strict=True):
        order = drawn["advantages"].argsort()
        assert torch.equal(drawn["advantages"][order], part["advantages"])
        for key, side in (("prompt", slice(-4, None)), ("completion", slice(0, 6))):
            found, mask = drawn[f"{key}_ids"][order], drawn[f"{key}_mask"][order]
            ids, real = part[f"{key}_ids"][:, side], part[f"{key}_mask"].bool()
            assert mask.sum() == real.sum() and torch.equal(found[mask.bool()], ids[real])


@pytest.mark.parametrize(
    ("prompts", "order", "idle_apart", "expected"),
    [
        ([9, 5, 9, 5], by_length, False, [1, 2, 3, 6]),
        ([9, 5, 9, 5], by_prompt, False, [1, 2, 3, 6]),
        ([9, 5, 9, 5], by_prompt, True, [3, 1, 2, 6]),
        ([5, 9, 5, 9], by_prompt, False, [3, 6, 1, 2]),
    ],
)
def test_rows_of_a_prompt_come_together_and_idle_ones_first(prompts, order, idle_apart, expected):
    rows = batch([4, 4, 4, 4], [6, 1, 3, 2])
    rows["prompt_ids"] = torch.tensor(prompts)[:, None].expand(4, 4)
    rows["advantages"] = torch.tensor([1.0, -1.0, 0.0, 2.0])
    assert lengths_of(regroup([rows], 1, order, idle_apart)) == [expected]


@pytest.mark.parametrize(
    ("rows", "passes", "fraction"),
    [
        # 2 rows of 4 + 6 positions hold 2 + 1 and 3 + 4 tokens: 10 of 20
        (batch([2, 3], [1, 4]), None, 0.5),
        # rows of 2 and 6 tokens: 4 of 12 positions are padding, and none in two passes
        (batch([1, 1], [1, 5]), Passes(least_saved=5), 1 / 3),
        (batch([1, 1], [1, 5]), Passes(least_saved=4), 0),
        # rows of 6 tokens, as wide as a multiple, as far as there are columns
        (batch([4, 1], [2, 5]), Passes(multiple=4), 1 / 4),
        (batch([4, 1], [2, 5]), Passes(multiple=64), 2 / 5),
        # lengths 1, 2, 10, 12, 3: the short rows apart save 3 · (12 - 3) = 27 of 32 positions
        (batch([1] * 5, [0, 1, 9, 11, 2], (1, 11)), Passes(least_saved=28), 32 / 60),
        (batch([1] * 5, [0, 1, 9, 11, 2], (1, 11)), Passes(least_saved=27), 5 / 33),
        (batch([1] * 5, [0, 1, 9, 11, 2], (1, 11)), Passes(least_saved=2), 1 / 29),
    ],
)
def test_padded_fractions_by_hand(rows, passes, fraction):
    assert padded_fraction([rows], passes) == pytest.approx(fraction)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=7),
    st.sampled_from([None, 1, 2, 3, 9]),
    st.sampled_from([None, 1, 3, 10]),
    st.sampled_from([1, 4, 64]),
)
def test_a_trimmed_forward_gives_every_token_what_the_padded_one_does(
    lengths, at_once, least, multiple
):
    """Of a simple causal model: the value of a token is the sum of all tokens up to it."""
    labels, widths = [], []

    def sums(ids_NL, mask_NL, width, labelled_NL):
        labels.append(int(labelled_NL.sum()))
        widths.append(ids_NL.size(1))
        return (ids_NL * mask_NL).cumsum(dim=1).float()[:, -width:], None

    rows = batch([p for p, _ in lengths], [c for _, c in lengths])
    ids_NL, mask_NL, width = batching.rows_of(rows)
    expected_NT = sums(ids_NL, mask_NL, width, mask_NL)[0] * rows["completion_mask"]
    labels.clear()
    found_NT, nothing = Passes(multiple, least)(sums, ids_NL, mask_NL, width, at_once)
    assert nothing is None and torch.equal(found_NT, expected_NT)
    assert sum(labels) == rows["completion_mask"].sum()  # at response tokens alone
    assert all(width % multiple == 0 or width == ids_NL.size(1) for width in widths)


# Here 2 of 3 microbatches have a kept row, in the other process 1 of 3: factor 6 / 3
def test_microbatches_with_a_kept_row_are_counted_over_all_processes():
    kept = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    parts = [{"row_weights": torch.tensor(rows)} for rows in kept]
    batching.weigh_microbatches(parts, "row_weights", lambda own: own + torch.tensor([1, 3]))
    assert [one["row_weights"].tolist() for one in parts] == [[2.0, 2.0]] * 3
