"""Trimming and regrouping on batches small enough to read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_ablate.trainer import batching
from trl_ablate.trainer.batching import by_length, by_prompt, padded_fraction, regroup, trim
from trl_ablate.trainer.forward_passes import Passes, forward_trimmed, groups_by_length


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


def test_trim_cuts_to_the_longest_prompt_and_completion():
    trimmed = trim(batch([2, 3], [1, 4]))
    assert trimmed["prompt_ids"].tolist() == [[101, 102, 103], [201, 202, 203]]
    assert trimmed["prompt_mask"].tolist() == [[0, 1, 1], [1, 1, 1]]
    assert trimmed["completion_ids"].tolist() == [[150, 151, 152, 153], [250, 251, 252, 253]]
    assert trimmed["old_per_token_logps"].shape == (2, 4)
    assert trimmed["importance_sampling_ratio"].shape == (2, 1)
    assert trimmed["num_items_in_batch"] == 99


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


def test_padded_fractions_by_hand():
    # 2 rows of 4 + 6 positions hold 2 + 1 and 3 + 4 tokens: 10 of 20
    assert padded_fraction([batch([2, 3], [1, 4])]) == pytest.approx(0.5)
    # rows of 2 and 6 tokens: 4 of 12 positions are padding, and none in two passes
    rows = batch([1, 1], [1, 5])
    assert padded_fraction([rows], Passes(least_saved=5)) == pytest.approx(1 / 3)
    assert padded_fraction([rows], Passes(least_saved=4)) == 0


class SumsSoFar:
    """A simple causal model: the value of a token is the sum of all tokens up to it."""

    def __init__(self):
        self.labels: list = []
        self.widths: list[int] = []

    def __call__(self, ids_NL, mask_NL, width, labelled_NL):
        self.labels.append(labelled_NL.tolist())
        self.widths.append(ids_NL.size(1))
        return (ids_NL * mask_NL).cumsum(dim=1).float()[:, -width:], None


def found_by(model, rows, *how, **named):
    """What the trimmed forward gives, which has to be what the padded one does."""
    ids_NL, mask_NL, width = batching.rows_of(rows)
    expected_NT = SumsSoFar()(ids_NL, mask_NL, width, mask_NL)[0] * rows["completion_mask"]
    found_NT, nothing = forward_trimmed(model, ids_NL, mask_NL, width, *how, **named)
    assert nothing is None
    assert torch.equal(found_NT, expected_NT)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=7),
    st.sampled_from([None, 1, 2, 3, 9]),
    st.sampled_from([None, 1, 3, 10]),
)
def test_a_trimmed_forward_gives_every_token_what_the_padded_one_does(lengths, at_once, least):
    rows = batch([p for p, _ in lengths], [c for _, c in lengths])
    found_by(SumsSoFar(), rows, at_once, least_saved=least)


# Prompts of 4 and 1, responses of 2 and 5: after moving, from columns 4 and 1 on
@pytest.mark.parametrize(
    ("rows", "multiple", "labels"),
    [
        (batch([4, 1], [2, 5]), 1, [[0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 1]]),
        (batch([4], [2], width=(4, 2)), 1, [[0, 0, 0, 0, 1, 1]]),
        (batch([4, 1], [2, 5]), 8, [[0, 0, 0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0, 0]]),
    ],
)
def test_labels_are_at_response_tokens_only(rows, multiple, labels):
    model = SumsSoFar()
    found_by(model, rows, multiple=multiple)
    assert model.labels == [labels]


@pytest.mark.parametrize(("multiple", "width"), [(1, 6), (4, 8), (64, 10)])
def test_a_trimmed_forward_is_as_wide_as_a_multiple_as_far_as_there_are_columns(multiple, width):
    rows, model = batch([4, 1], [2, 5]), SumsSoFar()
    found_by(model, rows, multiple=multiple)
    assert model.widths == [width]
    assert padded_fraction([rows], Passes(multiple=multiple)) == 1 - 12 / (2 * width)


# Here 2 of 3 microbatches have a kept row, in the other process 1 of 3: factor 6 / 3
def test_microbatches_with_a_kept_row_are_counted_over_all_processes():
    kept = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    parts = [{"row_weights": torch.tensor(rows)} for rows in kept]
    batching.weigh_microbatches(parts, "row_weights", lambda own: own + torch.tensor([1, 3]))
    assert [one["row_weights"].tolist() for one in parts] == [[2.0, 2.0]] * 3


# Lengths 1, 2, 10, 12, 3: the three short rows apart save 3 · (12 - 3) = 27 positions
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ((), [[0, 1, 4, 2, 3]]),
        ((2,), [[0, 1], [4, 2], [3]]),
        ((None, 28), [[0, 1, 4, 2, 3]]),
        ((None, 27), [[0, 1, 4], [2, 3]]),
        ((None, 2), [[0], [1, 4], [2], [3]]),
        ((3, 27), [[0, 1, 4], [2, 3]]),
    ],
)
def test_rows_are_split_where_this_saves_padding(how, expected):
    found = groups_by_length(torch.tensor([1, 2, 10, 12, 3]), *how)
    assert [rows.tolist() for rows in found] == expected
    assert groups_by_length(torch.tensor([4, 4, 4]), None, 1)[0].tolist() == [0, 1, 2]
