"""The policy: a tokenizer and a causal language model, from the package, a folder or a hub."""

import copy
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from e3rl.data.problem import Problem
from e3rl.data.prompt_lengths import UnknownTokensError
from e3rl.functional.head import Adjustment, Head
from e3rl.functional.predictions import LogitBlocks, Predictions, WholeLogits
from e3rl.functional.shared_prompts import SharedPrompts
from e3rl.policy.adapters import (
    AdaptersOff,
    LoRA,
    add_adapters,
    keep_adapters_only,
    merged_state,
)
from e3rl.policy.gguf import convert_once, find_gguf
from e3rl.policy.head import HeadSettings, find_adjustment
from e3rl.policy.loading import load_model, load_tokenizer, set_checkpointing
from e3rl.policy.model_path import check_model_path, name_path
from e3rl.policy.own_parts import read_own_parts, small_model
from e3rl.policy.packaged import PACKAGED, fetch_once
from e3rl.policy.shared_attention import PromptSharing, find_sharing, predict
from e3rl.policy.text import check_stop, continuation, make_messages, unknown_pieces
from e3rl.policy.weight_files import Files

EMBEDDED = "embedded"
FOLDERS = {EMBEDDED: "carries", "embedded_arithmetic": "arithmetic"}  # of the package's assets
RANDOM = "random"  # as embedded, but for the weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Render = Literal["auto", "chat", "plain"]
T = TypeVar("T")


def embedded_folder(path: str = EMBEDDED) -> Path:
    """Folder of a warm-started tiny policy that ships with the package."""
    return Path(str(resources.files("e3rl"))) / "assets" / FOLDERS[path]


def resolve_path(path: str) -> str:
    """Where transformers finds what `policy.path` names; makes it ready where that is to be done.

    Raises ModelFileError where it cannot be made ready, ModuleNotFoundError where packages are
    missing that read it.
    """
    if path in FOLDERS or path == RANDOM:
        return str(embedded_folder(EMBEDDED if path == RANDOM else path))
    if path in PACKAGED:
        return str(fetch_once(PACKAGED[path]))
    file = find_gguf(path)
    return path if file is None else str(convert_once(file))


class Policy(nn.Module):
    """A causal LM with the text side that belongs to it.

    The update and the engines see token ids only; prompts are rendered and encoded once, here.
    Dropout is off: importance ratios and probes need the very function that sampled.

    Args:
        path: "embedded" (the tiny policy warmed up on carries) or "embedded_arithmetic" (on
            arithmetic), "random" (the same shape and tokenizer,
            fresh weights), "smollm2" (a pretrained model that pip fetches), a local folder, a GGUF
            file, or a hub name.
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
        head: how log-probs and entropies are made from the output layer; None = whole logits.
        lora: train adapters on frozen weights; None = train the weights.
        prefill: how every answer begins: put behind the rendered prompt, in front of what is
            sampled, and part of the text that is judged.
        stop: texts that end a completion, of which each remains a part.
        share_prompts: compute the prompt of a group once for all its rollouts in training passes,
            where the model allows it and that is shorter.
        in_parts: leave the weights to `read_weights`, which ranks call once they share the policy,
            or know their device; fresh weights, and files that are not read in parts, are read at
            once all the same.

    Raises:
        ValueError: for an unknown dtype or render mode, a stop string that is empty or no text, a
            prefill that the tokenizer does not know, a tokenizer without an end token, or a model
            whose logits cannot be made in blocks where that is asked for.
        ModelFileError: for a GGUF file that cannot be read, or a model that cannot be fetched.
        OSError: where `path` is neither a folder with model and tokenizer nor reachable as a hub
            name.
    """

    computed_in: str | None = None  # precision of forward passes, where not the weights' own
    _unread: Files | None = None  # where weights are that nobody has read yet

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
        head: HeadSettings | None = None,
        lora: LoRA | None = None,
        prefill: str = "",
        stop: Sequence[str] = (),
        share_prompts: bool = True,
        in_parts: bool = False,
    ) -> None:
        super().__init__()
        _check_choices(dtype, render)
        check_stop(stop)
        self.path = resolve_path(path)
        fresh = random_weights or path == RANDOM
        check_model_path(self.path, weights=not fresh)
        with name_path(path):
            self.tokenizer = load_tokenizer(self.path, trust_remote_code)
            made = (self.path, DTYPES[dtype], attention, trust_remote_code)
            self.model, self._unread = load_model(*made, fresh, in_parts)
        self.lora = lora
        if lora is not None:
            add_adapters(self.model, lora)
            keep_adapters_only(self, self._unread)
        set_checkpointing(self.model, gradient_checkpointing)
        self.render = self._render_mode(render, chat_template)
        self.instruction = instruction
        self.system = system
        self.prefill = self._check_prefill(prefill)
        self.stop = tuple(stop)
        self.head = head or HeadSettings()
        self._adjustment: Adjustment | None = None  # of the logits, once it is known
        self.share_prompts = share_prompts
        self._sharing: tuple[PromptSharing | None] | None = None  # once it is known
        self._runs_whole = False  # the model's logits are not those of its output layer
        self._look_at_model()

    def _look_at_model(self) -> None:
        """Find out what is better known now than in a first step, and what takes a likeness of the
        model until there are weights."""
        if self._unread is not None:
            likeness = small_model(self.model)
            self._detect_head_adjustment(likeness)
            if self.share_prompts:
                self._sharing = (find_sharing(self.model, likeness),)
        elif not self.head.is_plain and self.device.type != "meta":
            self._detect_head_adjustment(self.model)

    def read_weights(self, device: torch.device) -> None:
        """Read what is missing of this rank's weights, to a device; at most once."""
        files, self._unread = self._unread, None
        if files is not None:
            read_own_parts(self.model, self, files, device)

    def _render_mode(self, render: Render, chat_template: str | None) -> Render:
        if render != "plain" and not self.tokenizer.chat_template:
            self.tokenizer.chat_template = chat_template
        has_template = bool(self.tokenizer.chat_template)
        if render == "chat" and not has_template:
            raise ValueError(
                f"policy.render=chat, but the tokenizer of {self.path} has no chat template: use "
                "policy.render=plain, or give one by policy.chat_template or a policy/template "
                "that brings one (qwen_instruct, r1_distill)"
            )
        return ("chat" if has_template else "plain") if render == "auto" else render

    def _check_prefill(self, prefill: str) -> str:
        tokens = self._tokens(prefill, add_special_tokens=False)
        if missing := unknown_pieces(self.tokenizer, prefill, tokens):
            raise ValueError(
                f"policy.prefill={prefill!r}: the tokenizer of {self.path} has no tokens for "
                f"{missing}; spell it as the policy's answers begin, spaces included"
            )
        return prefill

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
        """The rendered prompt of a problem, and the ids to sample from, the prefill's included.

        The prefill is not in the text, since `answer` begins with it. Raises UnknownTokensError for
        a prompt that the tokenizer cannot spell.
        """
        text = self.write_prompt(problem)
        whole = text + self.prefill
        # A template writes every special token itself, the leading one included.
        tokens = self._tokens(whole, add_special_tokens=self.render != "chat")
        if missing := unknown_pieces(self.tokenizer, whole, tokens):
            named = f"{missing} in the prompt of {problem.id!r}"
            raise UnknownTokensError(f"the tokenizer of {self.path} has no tokens for {named}")
        return text, tokens

    def write_prompt(self, problem: Problem) -> str:
        """The prompt of a problem as text: its chat in the template, or its messages alone."""
        messages = make_messages(problem.prompt, self.system, self.instruction)
        if self.render == "chat":
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            return cast(str, text)
        return "\n\n".join(message["content"] for message in messages)

    def _tokens(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])

    def prompting(self) -> dict[str, Any]:
        """How problems become prompts and where answers begin and end, by settings of `policy`;
        the chat template is in the tokenizer."""
        names = ("render", "instruction", "system", "prefill")
        return {name: getattr(self, name) for name in names} | {"stop": list(self.stop)}

    def decode(self, tokens: list[int]) -> str:
        """Text of a completion, special tokens left out."""
        return cast(str, self.tokenizer.decode(tokens, skip_special_tokens=True))

    def answer(self, prompt_tokens: Sequence[int], tokens: list[int]) -> str:
        """The text that is judged and shown: the prefill and what was sampled behind it."""
        if not self.prefill:
            return self.decode(tokens)
        return self.prefill + continuation(self.decode, prompt_tokens, tokens)

    def spell(self, tokens: list[int]) -> str:
        """Text of tokens as they are, special ones included and no spaces tidied up."""
        text = self.tokenizer.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return cast(str, text)

    @overload
    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor: ...

    @overload
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        read: Callable[[Predictions], T],
        layout: SharedPrompts | None = None,
    ) -> T: ...

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        read: Callable[[Predictions], T] | None = None,
        layout: SharedPrompts | None = None,
    ) -> Tensor | T:
        """What the policy predicts of chosen tokens.

        Causal attention cannot see the padding on the right, so no mask is given: attention then
        takes its fast causal path, with the same numbers.

        Args:
            tokens: (n, t) int64, right-padded.
            positions: (n, t) bool, the M tokens to predict (never column 0).
            read: takes what is wanted from the predictions, in row-major order of `positions`. It
                is called in here, where a policy that is sharded over ranks has its weights.
            layout: the same tokens with each prompt once, for a policy with `sharing`:
                the same predictions by a shorter pass.

        Returns:
            What `read` does, or all logits (M, V). The head runs on the M places only, so the
            (n, t, V) tensor never exists.
        """
        predictions = self._predictions(tokens, positions, layout)
        if read is not None:
            return read(predictions)
        if isinstance(predictions, WholeLogits):
            return predictions.logits
        return predictions.head.logits(predictions.hidden)

    def _predictions(
        self, tokens: Tensor, positions: Tensor, layout: SharedPrompts | None
    ) -> WholeLogits | LogitBlocks:
        if self._adjustment is None and not self._runs_whole:
            self._detect_head_adjustment(self.model)
        if layout is not None and self.sharing is None:
            raise ValueError(f"{self.path} cannot be given a layout: it shares no prompts")
        if self._adjustment is None:
            return WholeLogits(predict(self.model, "logits", tokens, positions, layout))
        decoder = self.model.get_decoder()
        hidden = predict(decoder, "last_hidden_state", tokens, positions, layout)
        layer = self.model.get_output_embeddings()
        if self.head.mode == "full" and self.head.dtype == "compute":
            return WholeLogits(self._adjustment(layer(hidden)))
        dtype = self.head.product_dtype(layer.weight)
        head = Head(layer.weight, layer.bias, self._adjustment, dtype)
        if self.head.mode == "full":
            return WholeLogits(head.logits(hidden))
        return LogitBlocks(hidden, head, self.head.block)

    @property
    def sharing(self) -> PromptSharing | None:
        """When passes may be given a layout with each prompt once; None where never.

        Found out when somebody first asks, which must be before ranks share the weights.
        """
        if self.share_prompts and self._sharing is None:
            self._sharing = (find_sharing(self.model),)
        return self._sharing[0] if self.share_prompts and self._sharing else None

    def _detect_head_adjustment(self, model: Any) -> None:
        """Find out how the logits of the model, or of its likes, follow from its output layer.

        Raises ValueError where they do not in a known way, and the head is not to be run whole.
        """
        self._adjustment = find_adjustment(model, self.eos_id)
        self._runs_whole = self._adjustment is None
        if self._runs_whole and not self.head.is_plain:
            kind = model.config.get_text_config().model_type
            raise ValueError(
                f"policy.head: model type {kind!r} alters the logits of its output layer in a way "
                "unknown here: use policy.head.mode=full and policy.head.dtype=compute, which run "
                "the model as it is"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Policy":
        """Casts to half precisions reach the weights alone, as where transformers loads in one.

        Rotary frequencies rounded to 8 bits would turn the thousandth token by radians.
        """
        own = [(m, name, b) for m in self.modules() for name, b in m._buffers.items()]
        kept = [(module, name, old) for module, name, old in own if old is not None]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module, name, old in kept:
            new = module._buffers[name]
            if new is not None and new.is_floating_point() and new.itemsize < old.itemsize:
                module._buffers[name] = old.to(new.device)
        return self

    def reference(self) -> "Policy | AdaptersOff":
        """What the policy is now, for good: the reference of a KL term.

        A frozen copy, or, of a policy with adapters, its base, which shares the weights.
        """
        if self.lora is not None:
            return AdaptersOff(self)
        return copy.deepcopy(self).requires_grad_(False).eval()

    def save(self, folder: Path, dtype: torch.dtype | None = None) -> None:
        """Write model and tokenizer so that transformers and vLLM load them (safetensors).

        Adapters are merged into what is written, before weights are cast to `dtype`, as the
        policy's own then are too.
        """
        state = None if self.lora is None else merged_state(self.model)
        if dtype is not None:
            self.to(dtype=dtype)
            state = state and {k: v.to(dtype) for k, v in state.items()}
        self.model.save_pretrained(folder, state_dict=state)
        self.tokenizer.save_pretrained(folder)


def _check_choices(dtype: str, render: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"policy.dtype={dtype!r}: choose one of {sorted(DTYPES)}")
    if render not in ("auto", "chat", "plain"):
        raise ValueError(f"policy.render={render!r}: choose auto, chat or plain")
