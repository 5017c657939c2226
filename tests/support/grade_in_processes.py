"""For torchrun: every process grades its share with its own pool; rank 0 prints all grades."""

import json
import os
import sys
import threading

import torch.distributed as dist

from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.functions import score_batch


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    share = rows[rank::world]
    scores: list = []

    def work() -> None:
        completions, golds = zip(*share, strict=True)
        with MathGrader(workers=1, timeout=10.0) as grader:
            scores.extend(score_batch("r1_zero", completions, golds, grader=grader))

    if os.environ.get("OFF_MAIN_THREAD"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    gathered: list = [None] * world
    dist.all_gather_object(gathered, scores)
    if rank == 0:
        merged = [gathered[row % world][row // world] for row in range(len(rows))]
        sys.stdout.write(json.dumps(merged) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
