"""By what the files that a recipe names are known."""

from trl_ablate.recipe.named_files import Anchor, changed_files


def test_data_of_one_name_are_told_apart_by_their_content(tmp_path):
    """So that two studies do not share a run, and a change makes another run."""
    known = {}
    for name, text in (("a", "1"), ("b", "2"), ("c", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.jsonl").write_text(text)
        anchor = Anchor()
        found = anchor.settings({"dataset": "data.jsonl"}, tmp_path / name)
        assert found == {"dataset": str(tmp_path / name / "data.jsonl")}
        (known[name],) = anchor.files.values()
        anywhere = Anchor()
        assert anywhere.settings(found) == found and anywhere.files == anchor.files
    assert known["a"] == known["c"] != known["b"]
    assert not changed_files(anchor.files)
    (tmp_path / "c" / "data.jsonl").write_text("3")
    assert changed_files(anchor.files)
