"""The Hub: what a finished run publishes, and how.

A published run is one repository, and one commit:

    README.md                         the model card
    config.json, *.safetensors, ...   the best model (the last one where no best was kept), so that
                                      `from_pretrained("user/name")` works
    checkpoint_best/ checkpoint_last/ the same two models, each under its name
    run.json, resolved_config.json, metrics.jsonl, alerts.jsonl, curves.png
    rollouts/                         what the model said at key steps

Folders rather than revisions, because one commit then holds a run whole or not at all, both models
are seen on the repository's page, `subfolder="checkpoint_last"` loads the other one, and equal
weights are stored once either way. Revisions stay free for what a person means by them, such as one
branch a seed (`--revision`).

Files are chosen by their fixed names, never by a suffix, and no link is followed. Left out on
purpose: optimizer states, pickles (`training_args.bin` may hold a token), git diffs and
the machine's name. Nothing here imports torch.
"""

from trl_ablate.errors import PublishError
from trl_ablate.hub.publishing import check_token, files_of, push_run

__all__ = ["PublishError", "check_token", "files_of", "push_run"]
