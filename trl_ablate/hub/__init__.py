"""The Hub: what a finished run publishes, and how.

A published run is one repository, and one commit:

    README.md                         the model card
    config.json, *.safetensors, ...   the best model (the last one where no best was kept), so that
                                      `from_pretrained("user/name")` works
    checkpoint_best/ checkpoint_last/ the same two models, each under its name
    run.json, resolved_config.json, metrics.jsonl, alerts.jsonl, curves.png
    rollouts/                         the model's responses at key steps

Folders and not revisions: one commit holds a run completely or not at all, the page shows both
models, and equal weights are stored once either way. Files are chosen by their fixed names, never
by a suffix, and links are not followed. Not published: optimizer states, pickles
(`training_args.bin` may contain a token), git diffs, the machine's name and its folders. No torch.
"""

from trl_ablate.errors import PublishError
from trl_ablate.hub.contents import check_name
from trl_ablate.hub.publishing import check_token, files_of, publish_command, push_run

__all__ = ["PublishError", "check_name", "check_token", "files_of", "publish_command", "push_run"]
