"""Predictions for published runs: by the stated rule, and compared as by hand."""

import pytest
import yaml

from tests.conftest import REPOSITORY
from trl_ablate.study.report.findings_page import FILE, contrasts, foretold, right_share
from trl_ablate.study.report.found_answers import read_report

STUDIES = REPOSITORY / "recipes" / "studies"
ROWS = yaml.safe_load((STUDIES / FILE).read_text(encoding="utf-8"))["rows"]
RUNS = """group,arm,seed,step,score
A,plain,0,0,0.1
A,plain,0,9,0.5
A,plain,1,9,0.4
A,new,0,9,0.1
A,new,1,9,0.7
B,plain,0,9,0.9
B,new,0,9,0.1
"""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["words"])
def test_what_is_foretold_follows_from_the_study(row):
    assert foretold(read_report(STUDIES / row["study"]) or {}, row["arm"]) == row.get("predicts")


def test_a_comparison_by_hand(tmp_path):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "runs.csv").write_text(RUNS)
    both = [["runs.csv", group, "new", "plain"] for group in ("A", "B")]
    rows = [
        {"study": name, "arm": "new", "words": name, "published": both}
        for name in ("worse", "collapsed", "equal")
    ]
    (tmp_path / FILE).write_text(yaml.safe_dump({"rows": rows}))
    for name, verdict, collapsed in (("worse", "worse", 0), ("collapsed", "worse", 2),
                                     ("equal", "equivalent", 0)):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(
            f'{{"arms": {{"new": {{"verdict": "{verdict}", "collapsed": [{collapsed}, 3]}}}}}}'
        )
    lower, fails, nothing = contrasts(tmp_path)
    assert (lower.predicts, fails.predicts, nothing.predicts) == ("lower", "fails", None)
    assert lower.published == {
        "runs A": (pytest.approx(-0.05), 2),
        "runs B": (pytest.approx(-0.8), 1),
    }
    assert nothing.published == lower.published and nothing.right == {}
    # in A: means 0.4 and 0.45; a run fails below the median of 0.3 and 0.2, which one of new does
    assert [*lower.right.values()] == [True, True] and [*fails.right.values()] == [True, True]
    assert right_share([lower]).startswith("2 of 2 contrasts came as foretold: 100 %")
    assert contrasts(tmp_path / "nowhere") == []
