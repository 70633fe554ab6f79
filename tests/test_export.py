"""An exported folder holds the very policy of the checkpoint, and nothing else is ever written."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import find_damage
from e3rl.checkpoints.sharded import save_shards, split_tensors
from e3rl.engines.vllm_build import INSTALL
from e3rl.export import main
from e3rl.policy.adapters import LoRA, merged_state
from e3rl.policy.policy import Policy
from e3rl.process.output import NoPlaceError
from e3rl.runs.exporting import export

pytestmark = pytest.mark.end_to_end


CONFIG = "policy:\n  _target_: e3rl.policy.policy.Policy\n  path: embedded\n"
PROMPT = "12+34=?"
KINDS = ("file", "shards")


@pytest.fixture(scope="module")
def trained(policy: Policy) -> Policy:
    """A policy that is not the one that its run started from."""
    other = Policy()
    with torch.no_grad():
        for number, weight in enumerate(other.parameters()):
            weight.mul_(1 + 0.01 * (number % 5))
    return other


def save(policy: Policy, kind: str, path: Path) -> None:
    state = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    checkpoint = {"state_dict": state, "optimizer_states": [], "epoch": 1}
    if kind == "file":
        AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    else:
        save_shards(*split_tensors(checkpoint), path)


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, trained: Policy, policy: Policy, tmp_path: Path) -> Path:
    """A run folder with the checkpoints of two steps, the newer one of the trained policy."""
    folder = tmp_path / "run"
    save(policy, request.param, folder / "checkpoints" / "step-000002.ckpt")
    save(trained, request.param, folder / "checkpoints" / "step-000004.ckpt")
    (folder / "config.yaml").write_text(CONFIG)
    return folder


@torch.no_grad()
def logits(model: torch.nn.Module, policy: Policy) -> torch.Tensor:
    ids = torch.tensor([policy.tokenizer(PROMPT)["input_ids"]])
    found: torch.Tensor = model.eval()(input_ids=ids).logits
    return found


def test_transformers_loads_it_with_identical_logits(
    run: Path, trained: Policy, policy: Policy, tmp_path: Path
) -> None:
    out = tmp_path / "models" / "mine"
    assert export(run / "checkpoints" / "step-000004.ckpt", out).name == "step-000004.ckpt"
    found = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits(found, policy), logits(trained.model, policy))
    assert not torch.equal(logits(found, policy), logits(policy.model, policy))
    assert found.dtype == torch.float32
    assert found.generation_config.eos_token_id == trained.model.generation_config.eos_token_id
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    assert tokenizer(PROMPT)["input_ids"] == policy.tokenizer(PROMPT)["input_ids"]
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors"}
    assert [path.name for path in out.parent.iterdir()] == ["mine"]


def test_it_is_a_policy_again(run: Path, trained: Policy, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    again = Policy(str(tmp_path / "out"))
    for name, weight in trained.named_parameters():
        assert torch.equal(again.get_parameter(name), weight)
    assert again.stop_ids == trained.stop_ids


def test_it_says_how_prompts_were_made_and_answers_ended(run: Path, tmp_path: Path) -> None:
    asked = {"instruction": "=", "prefill": " \\boxed{", "stop": ["}"]}
    (run / "config.yaml").write_text(
        CONFIG + "".join(f"  {k}: {json.dumps(v)}\n" for k, v in asked.items())
    )
    export(run, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "e3rl_prompting.json").read_text())
    assert said == {"render": "plain", "system": "", **asked}
    assert Policy(str(tmp_path / "out"), **said).prompting() == said


def test_weights_may_have_another_precision(run: Path, trained: Policy, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "bfloat16")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert found.dtype == torch.bfloat16
    for name, weight in trained.model.named_parameters():
        assert torch.equal(found.get_parameter(name), weight.bfloat16())


def test_adapters_are_merged_before_weights_lose_precision(tmp_path: Path) -> None:
    torch.manual_seed(3)
    tuned = Policy("random", lora=LoRA(r=2))
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.01)
    exact = {name: value.bfloat16() for name, value in merged_state(tuned.model).items()}
    tuned.save(tmp_path / "out", torch.bfloat16)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert found.dtype == torch.bfloat16
    for name, weight in found.named_parameters():
        assert torch.equal(weight, exact[name]), name


def test_adapters_on_fresh_weights_find_the_base_that_the_runs_seed_made(tmp_path: Path) -> None:
    torch.manual_seed(5)
    tuned = Policy("random", lora=LoRA(r=2))
    folder = tmp_path / "run"
    save(tuned, "file", folder / "checkpoints" / "step-000002.ckpt")
    lora = "  lora: {_target_: e3rl.policy.adapters.LoRA, r: 2}\n"
    (folder / "config.yaml").write_text(f"seed: 5\n{CONFIG.replace('embedded', 'random')}{lora}")
    before = torch.get_rng_state()
    export(folder, tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), before)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(found, tuned), logits(tuned.model, tuned))


def test_the_folder_one_is_in_can_be_named(run: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        export(run, Path())
    assert (here / "config.json").is_file()


def test_the_command_says_what_it_wrote_where(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()  # empty
    main([str(run), str(tmp_path / "out")])
    newest = run / "checkpoints" / "step-000004.ckpt"
    assert capsys.readouterr().out.splitlines()[-1] == f"{newest} -> {tmp_path / 'out'}"


def harm(path: Path) -> None:
    file = path / "__0_0.distcp" if path.is_dir() else path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_that_is_named_is_no_other_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = run / "checkpoints" / "step-000004.ckpt"
    harm(newest)
    with pytest.raises(SystemExit) as stop:
        main([str(newest), str(tmp_path / "out")])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert f"error: checkpoint {newest}: " in error
    assert "does not match" in error
    assert not (tmp_path / "out").exists()
    with pytest.warns(UserWarning, match=r"passing over checkpoint .*step-000004"):
        assert export(run, tmp_path / "out").name == "step-000002.ckpt"


@pytest.mark.parametrize("path", ["nowhere", "run/checkpoints/step-000009.ckpt", "model"])
def test_what_is_no_checkpoint_is_refused(
    path: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / path), str(tmp_path / "out")])
    assert stop.value.code == 2
    assert f"{path} is no checkpoint: give one like step-000064.ckpt" in capsys.readouterr().err


def test_a_folder_with_something_in_it_stays_as_it_is(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for place in (out, out / "mine.txt"):
        with pytest.raises(FileExistsError, match="exists and is not empty"):
            export(run, place)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_a_place_below_a_file_is_told_before_the_model_is_loaded(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NoPlaceError, match=r"/file is a file and no folder; choose another"):
        export(run, tmp_path / "file" / "out")


def test_a_checkpoint_without_its_run_is_told(run: Path, tmp_path: Path) -> None:
    (run / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.yaml is missing: .* keep checkpoints"):
        export(run, tmp_path / "out")


def test_a_failed_export_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Policy, folder: Path, dtype: torch.dtype | None) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Policy, "save", full)
    with pytest.raises(OSError, match="No space left"):
        export(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert find_damage(run / "checkpoints" / "step-000004.ckpt") == ""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=f"no vLLM: {INSTALL}")
def test_vllm_loads_it_and_decodes_as_the_policy_does(
    run: Path, trained: Policy, tmp_path: Path
) -> None:
    export(run, tmp_path / "out")
    script = Path(__file__).with_name("vllm_greedy.py")
    told = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out"), PROMPT],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    found = json.loads(told.stdout.split("TOKENS ")[1])
    ids = torch.tensor([trained.tokenizer(PROMPT)["input_ids"]])
    expected = trained.model.eval().generate(ids, do_sample=False, max_new_tokens=24)
    assert found == expected[0, ids.shape[1] :].tolist()
