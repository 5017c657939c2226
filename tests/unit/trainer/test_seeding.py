"""Random numbers of an evaluation: the generators, and the seeds sent to a vLLM server."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trl_ablate.trainer.seeding import own_randomness


def trainer(process: int = 0, client=None, **settings):
    """The attributes that determine the seeds of an evaluation."""
    config = {"seed": 3, "use_vllm": False, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 1}
    return SimpleNamespace(
        args=SimpleNamespace(**{**config, **settings}),
        accelerator=SimpleNamespace(
            process_index=process, is_main_process=process == 0, device=torch.device("cpu")
        ),
        vllm_generation=SimpleNamespace(vllm_client=client),
    )


def numbers() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.random()), random.random()


def drawn(**settings) -> tuple[float, float, float]:
    with own_randomness(trainer(**settings)):
        return numbers()


def test_the_processes_of_a_tensor_parallel_group_draw_alike():
    """Two processes share an engine and must sample the same tokens."""
    grouped = {"use_vllm": True, "vllm_tensor_parallel_size": 2}
    first, second, third, fourth = (drawn(process=i, **grouped) for i in range(4))
    assert first == second and third == fourth
    assert all(a != b for a, b in zip(first, third, strict=True))


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_vllm": True}, {"vllm_tensor_parallel_size": 2}, {"seed": 4}],
    ids=str,
)
def test_other_processes_draw_other_numbers(settings):
    """Without vLLM there is no shared engine, for any `vllm_tensor_parallel_size`."""
    one, other = drawn(process=0, **settings), drawn(process=1, **settings)
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert one == drawn(process=0, **settings)


def test_what_is_drawn_afterwards_is_as_if_nothing_had_been():
    def seed():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)

    seed()
    expected = numbers()
    seed()
    with pytest.raises(RuntimeError), own_randomness(trainer()):
        numbers()
        raise RuntimeError
    assert numbers() == expected


def test_the_generator_of_another_accelerator_is_restored(monkeypatch):
    """`torch.manual_seed` seeds it, too."""
    restored = []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: "the state of training")
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state, device: restored.append(state))
    one = trainer()
    one.accelerator.device = torch.device("mps")
    with own_randomness(one):
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


def test_a_server_draws_for_training_as_if_there_were_no_evaluation():
    server, undisturbed = Server(), Server()
    remote = {"use_vllm": True, "vllm_mode": "server", "client": server}
    found = []
    for _ in range(2):
        with own_randomness(trainer(**remote)):
            found.append([server.generate(**ASKED), server.generate(**ASKED, features=[1, 2, 3])])
    assert found[0] == found[1]
    assert server.generate(**ASKED) == undisturbed.generate(**ASKED)


def test_every_completion_that_a_server_evaluates_has_a_seed_of_its_own():
    server = Server()
    with own_randomness(trainer(use_vllm=True, vllm_mode="server", client=server)):
        found = server.generate(**ASKED, generation_kwargs={"stop": ["</answer>"]})
        again = server.generate(**ASKED)
    assert len(server.seeds) == len(set(server.seeds)) == 12
    assert found["prompt_ids"] == ASKED["prompts"] and found["logprobs"] is None
    completions = [ids for answer in (found, again) for (ids,) in answer["completion_ids"]]
    assert len(set(completions)) == 12


def test_a_process_that_sends_no_requests_has_no_client():
    with own_randomness(trainer(process=1, use_vllm=True, vllm_mode="server")):
        pass
