"""Who samples tokens: one file per engine behind the protocol of `base.py`."""
