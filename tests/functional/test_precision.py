import torch

from e3rl.functional.precision import float32_by_default


def test_new_tensors_are_float32_within_and_what_they_were_afterwards():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with float32_by_default():
            assert torch.zeros(1).dtype == torch.float32
        assert torch.zeros(1).dtype == torch.bfloat16
    finally:
        torch.set_default_dtype(before)
