"""Top-k and top-p sampling: the likeliest tokens alone, renormalised.

For looking at a policy, never for training it: the log-probs kept are those of the truncated
distribution, which is not the one that the policy gradient is taken of.
"""

import torch
from torch import Tensor


def truncate(logits: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Logits with -inf in the place of what is cut off; top-k first, then top-p of what is left.

    Of the sorted probabilities p(1) ≥ p(2) ≥ ... token i stays where p(1) + ... + p(i-1) < top_p
    (Holtzman et al., arXiv 1904.09751, section 3.1), and where it is no less likely than the
    top_k-th token. The likeliest token always stays.

    Args:
        logits: (n, V), already divided by the temperature.
        top_p: (n,) in (0, 1]; 1 keeps everything.
        top_k: (n,) int64; 0 keeps everything.
    """
    ordered, places = logits.sort(dim=-1)  # ascending, so that rounding falls on the unlikely end
    width = logits.shape[-1]
    kept = torch.where(top_k == 0, width, top_k).clamp(max=width)
    least = ordered.gather(1, (width - kept)[:, None])
    ordered = ordered.masked_fill(ordered < least, -torch.inf)
    below = ordered.softmax(dim=-1).cumsum(dim=-1)
    outside = below <= 1 - top_p[:, None]
    outside[:, -1] = False
    return torch.empty_like(logits).scatter_(1, places, ordered.masked_fill(outside, -torch.inf))
