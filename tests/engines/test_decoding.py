"""Token by token decoding gives the logits of whole passes, whatever rows leave and when."""

import pytest
import torch

from e3rl.engines import decoding as module
from e3rl.engines.base import RolloutRequest
from e3rl.engines.decoding import Decoding
from small_models import with_model

pytestmark = pytest.mark.end_to_end


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "mistral"])
@pytest.mark.parametrize("room", [1, 3, 32])
def test_logits_are_those_of_whole_passes(policy, monkeypatch, family, room):
    monkeypatch.setattr(module, "ROOM", room)
    own = with_model(policy, family)
    assert own.sharing is not None
    prompts = [(5, 6, 7), (5, 6, 7), (8, 9), (8, 9), (4,)]
    texts = [list(prompt) for prompt in prompts]
    noise = torch.Generator().manual_seed(0)
    decoding = Decoding(own, [RolloutRequest(i, 0, p, 1.0, i, 9) for i, p in enumerate(prompts)])
    for step in range(9):
        for text, logits in zip(texts, decoding.logits, strict=True):
            wanted = own.model(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
        if step in (2, 5):
            kept = torch.tensor([0, 2, 3] if step == 2 else [2, 0])
            decoding.keep(kept)
            texts = [texts[row] for row in kept]
        tokens = torch.randint(3, 30, (len(texts),), generator=noise)
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
        decoding.step(tokens)
