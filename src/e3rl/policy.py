"""The policy: a tokenizer and a causal language model, from the package, a folder or a hub."""

import copy
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from e3rl.data.problem import Message, Problem

EMBEDDED = "embedded"
RANDOM = "random"  # as embedded, but for the weights
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # all in tokenizer.json
Render = Literal["auto", "chat", "plain"]


def embedded_folder() -> Path:
    """Folder of the warm-started tiny policy that ships with the package."""
    return Path(str(resources.files("e3rl"))) / "assets" / "warm_start"


def resolved_path(path: str) -> str:
    """Where transformers finds what `policy.path` names."""
    return str(embedded_folder()) if path in (EMBEDDED, RANDOM) else path


class Policy(nn.Module):
    """A causal LM with the text side that belongs to it.

    The update and the engines see token ids only; prompts are rendered and encoded once, here.
    Dropout is off: importance ratios and probes need the very function that sampled.

    Args:
        path: "embedded" (the tiny warm-started policy), "random" (the same shape and tokenizer,
            fresh weights), a local folder, or a hub name.
        dtype: precision of the weights, "float32", "bfloat16" or "float16".
        attention: attention implementation handed to transformers ("sdpa", "eager", ...).
        gradient_checkpointing: recompute activations in the backward pass.
        render: "chat" applies the tokenizer's chat template, "plain" does not, "auto" does
            where the tokenizer has one.
        instruction: text appended to the last message, e.g. what form the answer is to have.
        system: system message of prompts that have none; a paragraph of its own in plain text.
        chat_template: Jinja template for a tokenizer that has none; its own always wins.
        trust_remote_code: run code that a hub repository brings along.
        random_weights: build from the configuration only, with fresh weights.

    Raises:
        ValueError: for an unknown dtype or render mode, or a tokenizer without an end token.
        OSError: where `path` is neither a folder with a model nor reachable as a hub name.
    """

    computed_in: str | None = None  # precision of forward passes, where not the weights' own

    def __init__(
        self,
        path: str = EMBEDDED,
        dtype: str = "float32",
        attention: str = "sdpa",
        gradient_checkpointing: bool = False,
        render: Render = "auto",
        instruction: str = "",
        trust_remote_code: bool = False,
        random_weights: bool = False,
        system: str = "",
        chat_template: str | None = None,
    ) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise ValueError(f"policy.dtype={dtype!r}: choose one of {sorted(DTYPES)}")
        if render not in ("auto", "chat", "plain"):
            raise ValueError(f"policy.render={render!r}: choose auto, chat or plain")
        self.path = resolved_path(path)
        self.tokenizer = _load_tokenizer(self.path, trust_remote_code)
        self.model = _load_model(
            self.path,
            DTYPES[dtype],
            attention,
            trust_remote_code,
            random_weights or path == RANDOM,
        )
        # transformers recomputes activations in train mode only, and is silent about it in eval.
        self.model.train(gradient_checkpointing)
        if gradient_checkpointing:
            # Saving and restoring generators would race with an engine that samples meanwhile.
            noisy = _has_dropout(self.model)
            self.model.gradient_checkpointing_enable(
                {"use_reentrant": False, "preserve_rng_state": noisy}
            )
        if render != "plain" and not self.tokenizer.chat_template:
            self.tokenizer.chat_template = chat_template
        self.render = self._render_mode(render)
        self.instruction = instruction
        self.system = system
        self._split_head: bool | None = None

    def _render_mode(self, render: Render) -> Render:
        has_template = bool(self.tokenizer.chat_template)
        if render == "chat" and not has_template:
            raise ValueError(
                f"policy.render=chat, but the tokenizer of {self.path} has no chat template: "
                "use render=plain or a tokenizer with a template"
            )
        return ("chat" if has_template else "plain") if render == "auto" else render

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.eos_id if pad is None else pad)

    @property
    def eos_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def stop_ids(self) -> list[int]:
        """Every token that ends a completion: the tokenizer's and the generation config's."""
        configured = self.model.generation_config.eos_token_id
        extra = configured if isinstance(configured, list) else [configured]
        return sorted({self.eos_id, *(int(token) for token in extra if token is not None)})

    @property
    def vocabulary_size(self) -> int:
        """Width of the output layer (not the tokenizer's length), as entropy formulas need it."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode(self, problem: Problem) -> tuple[str, list[int]]:
        """The rendered prompt of a problem and its token ids, ready to sample from."""
        messages = self._messages(problem.prompt)
        if self.render == "chat":
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            # The template writes every special token itself, the leading one included.
            return text, list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        text = "\n\n".join(message["content"] for message in messages)
        return text, list(self.tokenizer(text)["input_ids"])

    def _messages(self, prompt: str | tuple[Message, ...]) -> list[Message]:
        """The chat that a prompt is, with the system message and the instruction."""
        asked = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
        messages = [dict(message) for message in asked]
        if self.system and messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": self.system})
        messages[-1]["content"] += self.instruction
        return messages

    def decode(self, tokens: list[int]) -> str:
        """Text of a completion, special tokens left out."""
        return cast(str, self.tokenizer.decode(tokens, skip_special_tokens=True))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits that predict chosen tokens.

        Causal attention cannot see the padding on the right, so no mask is given: attention then
        takes its fast causal path, with the same numbers.

        Args:
            tokens: (n, t) int64, right-padded.
            positions: (n, t) bool, the tokens to predict (never column 0).

        Returns:
            (M, V) logits in row-major order of `positions`; the head runs on these M places
            only, so the (n, t, V) tensor never exists.
        """
        decoder, head = self._decoder_and_head()
        before = torch.roll(positions, shifts=-1, dims=1)  # the state that predicts token t is t-1
        if self._head_is_separable(decoder, head):
            hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
            return cast(Tensor, head(hidden[before]))
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return cast(Tensor, logits[before])

    def _decoder_and_head(self) -> tuple[nn.Module, nn.Module]:
        return self.model.get_decoder(), self.model.get_output_embeddings()

    def _head_is_separable(self, decoder: nn.Module, head: nn.Module) -> bool:
        """Whether head(decoder(x)) are the model's logits (some models scale or cap them)."""
        if self._split_head is None:
            probe = torch.full((1, 4), self.eos_id, device=self.device)
            with torch.no_grad():
                whole = self.model(input_ids=probe, use_cache=False).logits
                parts = head(decoder(input_ids=probe, use_cache=False).last_hidden_state)
            self._split_head = bool(torch.equal(whole, parts))
        return self._split_head

    def frozen_copy(self) -> "Policy":
        """A copy that shares nothing and is never trained: the reference of a KL term."""
        return copy.deepcopy(self).requires_grad_(False).eval()

    def save(self, folder: Path) -> None:
        """Write model and tokenizer so that transformers and vLLM load them (safetensors)."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _load_tokenizer(path: str, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    # For some families AutoTokenizer puts the family's own tokenizer in the place of any other,
    # so that a Qwen2 with, say, single characters as tokens would be split by Qwen2's rules.
    saved = get_tokenizer_config(path, trust_remote_code=trust_remote_code)
    generic = saved.get("tokenizer_class") in GENERIC_TOKENIZERS and "auto_map" not in saved
    loader = PreTrainedTokenizerFast if generic else AutoTokenizer
    tokenizer = loader.from_pretrained(path, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer of {path} has no end-of-sequence token, so completions cannot end: "
            "set `eos_token` in its tokenizer_config.json"
        )
    return tokenizer


def _load_model(
    path: str, dtype: torch.dtype, attention: str, trust_remote_code: bool, random_weights: bool
) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    for name, value in vars(config.get_text_config()).items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config.get_text_config(), name, 0.0)
    options = {
        "dtype": dtype,
        "attn_implementation": attention,
        "trust_remote_code": trust_remote_code,
    }
    if random_weights:
        return AutoModelForCausalLM.from_config(config, **options)
    return AutoModelForCausalLM.from_pretrained(path, config=config, **options)


def _has_dropout(model: Any) -> bool:
    """Whether a forward pass in train mode draws random numbers."""
    rates = (value for name, value in vars(model.config).items() if "drop" in name)
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
