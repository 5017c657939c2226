"""Trimming and regrouping on batches small enough to read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_ablate.trainer.batching import (
    by_length,
    by_prompt,
    padded_fraction,
    regroup,
    trim,
    weigh_microbatches,
)
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


def test_trim_cuts_to_the_longest_prompt_and_completion():
    trimmed = trim(batch([2, 3], [1, 4]))
    assert trimmed["prompt_ids"].tolist() == [[101, 102, 103], [201, 202, 203]]
    assert trimmed["prompt_mask"].tolist() == [[0, 1, 1], [1, 1, 1]]
    assert trimmed["completion_ids"].tolist() == [[150, 151, 152, 153], [250, 251, 252, 253]]
    assert trimmed["old_per_token_logps"].shape == (2, 4)
    assert trimmed["importance_sampling_ratio"].shape == (2, 1)
    assert trimmed["num_items_in_batch"] == 99


def test_trim_keeps_two_columns_where_every_completion_is_masked():
    assert trim(batch([4], [0]))["completion_ids"].shape == (1, 2)
    assert trim(batch([4], [0], width=(4, 1)))["completion_ids"].shape == (1, 1)


def test_trim_cuts_to_multiples_as_far_as_there_are_columns():
    trimmed = trim(batch([3, 5], [1, 5], width=(8, 7)), multiple=4)
    assert trimmed["prompt_ids"].shape == (2, 8)
    assert trimmed["completion_ids"].shape == (2, 7)
    assert trim(batch([3], [3], width=(8, 8)), multiple=4)["completion_ids"].shape == (1, 4)


def test_regroup_sorts_within_a_step_and_not_across():
    first, second = batch([4, 4], [6, 1]), batch([4, 4], [5, 2])
    third, fourth = batch([4, 4], [3, 6]), batch([4, 4], [1, 2])
    regrouped = regroup([first, second, third, fourth], 2, by_length)
    lengths = [part["completion_mask"].sum(1).tolist() for part in regrouped]
    assert lengths == [[1, 2], [5, 6], [1, 2], [3, 6]]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=8, max_size=8))
def test_regrouping_loses_and_invents_no_row(lengths):
    halves = [lengths[:4], lengths[4:]]
    parts = [batch([p for p, _ in half], [c for _, c in half]) for half in halves]
    for offset, part in enumerate(parts):
        part["advantages"] += 4 * offset
    regrouped = regroup(parts, 2, by_length)
    rows = {}
    for part in regrouped:
        for i, name in enumerate(part["advantages"].tolist()):
            rows[name] = part["completion_mask"][i].sum().item()
    assert rows == {float(i): c for i, (_, c) in enumerate(lengths)}
    assert padded_fraction([trim(b) for b in regrouped]) <= padded_fraction(parts)


def test_rows_of_a_prompt_come_together_and_idle_ones_first():
    rows = batch([4, 4, 4, 4], [6, 1, 3, 2])
    rows["prompt_ids"] = torch.tensor([[9], [5], [9], [5]]).expand(4, 4)
    rows["advantages"] = torch.tensor([1.0, -1.0, 0.0, 2.0])

    def lengths(order, idle_apart):
        (one,) = regroup([rows], 1, order, idle_apart)
        return one["completion_mask"].sum(dim=1).tolist()

    assert lengths(by_length, False) == [1, 2, 3, 6]
    assert lengths(by_prompt, False) == [1, 2, 3, 6]
    assert lengths(by_prompt, True) == [3, 1, 2, 6]
    rows["prompt_ids"] = torch.tensor([[5], [9], [5], [9]]).expand(4, 4)
    assert lengths(by_prompt, False) == [3, 6, 1, 2]


def test_padded_fraction_by_hand():
    # 2 rows of 4 + 6 positions hold 2 + 1 and 3 + 4 tokens: 10 of 20
    assert padded_fraction([batch([2, 3], [1, 4])]) == pytest.approx(0.5)


def sums_so_far(ids_NL, mask_NL, width, labelled_NL):
    """A simple causal model: the value of a token is the sum of all tokens up to it."""
    return (ids_NL * mask_NL).cumsum(dim=1).float()[:, -width:], None


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=7),
    st.sampled_from([None, 1, 2, 3, 9]),
    st.sampled_from([None, 1, 3, 10]),
)
def test_a_trimmed_forward_gives_every_token_what_the_padded_one_does(lengths, at_once, least):
    rows = batch([p for p, _ in lengths], [c for _, c in lengths])
    ids_NL = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask_NL = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    expected_NT = sums_so_far(ids_NL, mask_NL, 6, mask_NL)[0] * rows["completion_mask"]
    found_NT, nothing = forward_trimmed(sums_so_far, ids_NL, mask_NL, 6, at_once, least_saved=least)
    assert nothing is None
    assert torch.equal(found_NT, expected_NT)


def test_labels_are_at_response_tokens_only():
    """Prompts of 4 and 1, responses of 2 and 5: after moving, from columns 4 and 1 on."""
    rows = batch([4, 1], [2, 5])
    seen = []

    def forward(ids_NL, mask_NL, width, labelled_NL):
        seen.append(labelled_NL.tolist())
        return sums_so_far(ids_NL, mask_NL, width, labelled_NL)

    ids_NL = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask_NL = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    forward_trimmed(forward, ids_NL, mask_NL, 6)
    assert seen.pop() == [[0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 1]]
    forward_trimmed(forward, ids_NL[:1, :6], mask_NL[:1, :6], 2)
    assert seen.pop() == [[0, 0, 0, 0, 1, 1]]
    forward_trimmed(forward, ids_NL, mask_NL, 6, multiple=8)
    assert seen.pop() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize(("multiple", "width"), [(1, 6), (4, 8), (64, 10)])
def test_a_trimmed_forward_is_as_wide_as_a_multiple_as_far_as_there_are_columns(multiple, width):
    rows = batch([4, 1], [2, 5])
    widths = []

    def forward(ids_NL, mask_NL, completion, labelled_NL):
        widths.append(ids_NL.shape[1])
        return sums_so_far(ids_NL, mask_NL, completion, labelled_NL)

    ids_NL = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask_NL = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    found_NT, _ = forward_trimmed(forward, ids_NL, mask_NL, 6, multiple=multiple)
    assert widths == [width]
    assert torch.equal(
        found_NT, sums_so_far(ids_NL, mask_NL, 6, mask_NL)[0] * rows["completion_mask"]
    )
    assert padded_fraction([rows], Passes(multiple=multiple)) == 1 - 12 / (2 * width)


# Here 2 of 3 microbatches have a kept row, in the other process 1 of 3: factor 6 / 3
def test_microbatches_with_a_kept_row_are_counted_over_all_processes():
    kept = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    microbatches = [{"row_weights": torch.tensor(rows)} for rows in kept]
    weigh_microbatches(microbatches, "row_weights", lambda counts: counts + torch.tensor([1, 3]))
    assert [one["row_weights"].tolist() for one in microbatches] == [[2.0, 2.0]] * 3


def test_rows_are_split_where_this_saves_padding():
    """Lengths 1, 2, 10, 12, 3: the three short rows apart save 3 · (12 - 3) = 27 positions."""
    lengths_N = torch.tensor([1, 2, 10, 12, 3])
    in_order = [0, 1, 4, 2, 3]

    def found(*arguments):
        return [rows.tolist() for rows in groups_by_length(lengths_N, *arguments)]

    assert found() == [in_order]
    assert found(2) == [[0, 1], [4, 2], [3]]
    assert found(None, 28) == [in_order]
    assert found(None, 27) == [[0, 1, 4], [2, 3]]
    assert found(None, 2) == [[0], [1, 4], [2], [3]]
    assert found(3, 27) == [[0, 1, 4], [2, 3]]
    assert groups_by_length(torch.tensor([4, 4, 4]), None, 1)[0].tolist() == [0, 1, 2]


def test_the_padded_share_of_split_rows_by_hand():
    """Rows of 2 and 6 tokens: 4 of 12 positions are padding, and none in two passes."""
    rows = batch([1, 1], [1, 5])
    assert padded_fraction([rows], Passes(least_saved=5)) == pytest.approx(1 / 3)
    assert padded_fraction([rows], Passes(least_saved=4)) == 0
