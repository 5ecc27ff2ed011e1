"""Folders to and from the Hugging Face Hub, for what is no sentence-transformers model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["check_exists", "download", "upload"]


def check_exists(name_or_path: str | os.PathLike) -> None:
    """Refuse what is neither a folder nor a name that a repository could have.

    Raises:
        FileNotFoundError: there is no such folder.
        NotADirectoryError: it is a file.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    name, path = os.fspath(name_or_path), Path(name_or_path)
    if path.is_file():
        raise NotADirectoryError(f"{name} is a file: give the folder that it lies in")
    try:
        validate_repo_id("folder" if name and path.is_dir() else name)
    except HFValidationError:
        raise FileNotFoundError(f"no such folder: {name!r}; of a repository on the Hub give owner/name") from None


def upload(
    folder: str | Path,
    repo_id: str,
    *,
    repo_type: str = "model",
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    commit_message: str | None = None,
    delete_patterns: list[str] | None = None,
    **create: Any,
) -> str:
    """Put a folder's files into a repository, made where there is none; files that are there already are not sent.

    Compiled Python files stay here.

    Args:
        folder: local.
        repo_id: owner/name; without an owner, yours.
        repo_type: "model", "dataset" or "space".
        revision: branch, made where there is none.
        private: whether a new repository is.
        token: None takes the one you are logged in with.
        commit_message: of the commit.
        delete_patterns: files there that go if the folder lacks them.
        create: further arguments of `create_repo`.

    Returns:
        The address of the commit.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    url = api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, **create)
    if revision is not None:
        api.create_branch(url.repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
    commit = api.upload_folder(
        repo_id=url.repo_id,
        folder_path=folder,
        repo_type=repo_type,
        revision=revision,
        commit_message=commit_message,
        delete_patterns=delete_patterns,
        ignore_patterns=["*.pyc"],  # beside the module of an installed metric
    )
    return commit.commit_url


def download(
    name_or_path: str | os.PathLike,
    filenames: tuple[str, ...],
    *,
    revision: str | None = None,
    token: bool | str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """The first of these files that a folder or repository has, from the cache where it is there.

    Raises:
        FileNotFoundError: it has none of them, or there is no such folder.
        OSError: no such repository, no right to read it, or no way to the Hub.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    check_exists(name_or_path)
    folder = Path(name_or_path)
    missing: Exception | None = None
    for name in filenames:
        if folder.is_dir():
            if (folder / name).is_file():
                return folder / name
            continue
        try:
            return Path(
                hf_hub_download(
                    str(name_or_path),
                    name,
                    revision=revision,
                    token=token,
                    cache_dir=cache_dir,
                    local_files_only=local_files_only,
                )
            )
        except LocalEntryNotFoundError as error:  # offline and not in the cache; also an EntryNotFoundError
            missing = error
        except EntryNotFoundError as error:
            missing = error
    if isinstance(missing, LocalEntryNotFoundError):
        raise OSError(f"{name_or_path} is not in the cache, and the Hub can't be reached: {missing}") from missing
    raise FileNotFoundError(f"{name_or_path} holds no {' and no '.join(filenames)}") from missing
