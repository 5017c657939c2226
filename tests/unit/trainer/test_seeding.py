"""Random numbers of an evaluation: the generators, and the seeds sent to a vLLM server."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trl_ablate.trainer.seeding import own_randomness


def trainer(process: int = 0, client=None, device: str = "cpu", **settings):
    """The attributes that determine the seeds of an evaluation."""
    config = {"seed": 3, "use_vllm": False, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 1}
    return SimpleNamespace(
        args=SimpleNamespace(**{**config, **settings}),
        accelerator=SimpleNamespace(
            process_index=process, is_main_process=process == 0, device=torch.device(device)
        ),
        vllm_generation=SimpleNamespace(vllm_client=client),
    )


def numbers() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.random()), random.random()


@pytest.mark.parametrize(
    ("settings", "together"),
    [
        ({}, 1),
        ({"use_vllm": True}, 1),
        ({"vllm_tensor_parallel_size": 2}, 1),  # without vLLM there is no shared engine
        ({"use_vllm": True, "vllm_tensor_parallel_size": 2}, 2),
    ],
    ids=str,
)
def test_processes_draw_alike_where_they_share_an_engine(settings, together):
    """Such processes must sample the same tokens; others draw other numbers."""
    drawn = []
    for process in range(4):
        with own_randomness(trainer(process, **settings)):
            drawn.append(numbers())
    for one in range(4):
        for other in range(4):
            alike = one // together == other // together
            assert all((a == b) is alike for a, b in zip(drawn[one], drawn[other], strict=True))


def test_what_is_drawn_afterwards_is_as_if_nothing_had_been():
    found = []
    for evaluates in (False, True):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        if evaluates:
            with pytest.raises(RuntimeError), own_randomness(trainer()):
                numbers()
                raise RuntimeError
        found.append(numbers())
    assert found[0] == found[1]


def test_the_generator_of_another_accelerator_is_restored(monkeypatch):
    """`torch.manual_seed` seeds it, too."""
    restored = []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: "the state of training")
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state, device: restored.append(state))
    with own_randomness(trainer(device="mps")):
        assert not restored
    assert restored == ["the state of training"]


class Server:
    """A vLLM server as its client sees it: requests without a seed draw from one generator.

    With a seed, the n completions of every prompt of a request follow from it.
    """

    def __init__(self):
        self.generator = random.Random(0)
        self.seeds: list[int] = []

    def generate(self, prompts, features=None, n=1, generation_kwargs=None, **sampling):
        seed = (generation_kwargs or {}).get("seed")
        draws = [self.generator if seed is None else random.Random(seed + i) for i in range(n)]
        self.seeds += [] if seed is None else [seed + i for i in range(n)]
        rows = [[draw.randint(0, 10**9)] for _ in prompts for draw in draws]
        assert features is None or len(features) == len(prompts)
        return {"prompt_ids": list(prompts), "completion_ids": rows, "logprobs": None}


ASKED = {"prompts": [[1], [2], [3]], "n": 2, "temperature": 0.7}


def test_every_completion_that_a_server_evaluates_has_a_seed_of_its_own():
    """And training draws as if there were no evaluation."""
    server, evaluations = Server(), []
    for _ in range(2):
        server.seeds.clear()
        with own_randomness(trainer(use_vllm=True, vllm_mode="server", client=server)):
            found = server.generate(**ASKED, generation_kwargs={"stop": ["</answer>"]})
            evaluations.append([found, server.generate(**ASKED, features=[1, 2, 3])])
        assert len(server.seeds) == len(set(server.seeds)) == 12
    assert evaluations[0] == evaluations[1]
    for answer in evaluations[0]:
        assert answer["prompt_ids"] == ASKED["prompts"] and answer["logprobs"] is None
        assert len({ids for (ids,) in answer["completion_ids"]}) == 6
    assert server.generate(**ASKED) == Server().generate(**ASKED)


def test_a_process_that_sends_no_requests_has_no_client():
    with own_randomness(trainer(process=1, use_vllm=True, vllm_mode="server")):
        pass
