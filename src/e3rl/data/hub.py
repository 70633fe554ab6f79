"""Files of published data sets, by their address on the Hugging Face hub."""

import re
from pathlib import Path
from urllib.parse import unquote

ADDRESS = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<file>.+)"
)
FORM = "hf://datasets/OWNER/NAME[@REVISION]/FILE"


def local_file(path: str | Path) -> Path:
    """The file on this machine: `path` itself, or what `hf://datasets/...` is the address of.

    A file of the hub is downloaded once and then read from huggingface_hub's cache, without a
    network too.

    Raises FileNotFoundError where it is not here and cannot be fetched; ValueError for an address
    that is not of the form above.
    """
    if not str(path).startswith("hf://"):
        return Path(path)
    found = ADDRESS.fullmatch(str(path))
    if found is None:
        raise ValueError(f"{path} is no address of a file on the hub: write {FORM}")
    import huggingface_hub

    revision = unquote(found["revision"]) if found["revision"] else None
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                found["repo"], found["file"], repo_type="dataset", revision=revision
            )
        )
    # Its errors for no network, an unknown repository and a missing file are all of this kind.
    except OSError as error:
        reason = str(error).strip().split("\n")[0]
        raise FileNotFoundError(
            f"{path} cannot be fetched from the hub ({type(error).__name__}: {reason}). Download "
            f"{found['file']} of the data set {found['repo']} where there is a network, and give "
            "the local file as path=..."
        ) from error
