"""Folders to and from the Hugging Face Hub, and the cards that lie there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .model_card import is_ours

__all__ = ["check_exists", "create", "download", "find", "has_free_card", "keep_card", "upload"]


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


def create(
    repo_id: str,
    *,
    repo_type: str = "model",
    revision: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    exist_ok: bool = True,
    **more: Any,
) -> str:
    """Make a repository, and a branch of it, where there is none.

    Args:
        repo_id: owner/name; without an owner, yours.
        repo_type: "model", "dataset" or "space".
        revision: the branch; a new one starts as the main one is.
        private: whether a new repository is.
        token: None takes the one you are logged in with.
        exist_ok: False: a repository that is there is an error.
        more: arguments of `create_repo`.

    Returns:
        Its name, with the owner.

    Raises:
        OSError: no way to the Hub, no right to make it, or (exist_ok=False) it is there.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    name = api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=exist_ok, **more).repo_id
    if revision is not None:
        api.create_branch(name, branch=revision, repo_type=repo_type, exist_ok=True)
    return name


def _card(
    repo_id: str, token: bool | str | None = None, revision: str | None = None, repo_type: str = "model"
) -> Path | None:
    """The card in a repository; None: there is none.

    Raises:
        LocalEntryNotFoundError, HfHubHTTPError: no answer.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo_id, "README.md", repo_type=repo_type, token=token, revision=revision))
    except LocalEntryNotFoundError:  # no answer; also an EntryNotFoundError
        raise
    except EntryNotFoundError:
        return None


def has_free_card(
    repo_id: str, token: bool | str | None = None, revision: str | None = None, repo_type: str = "model"
) -> bool:
    """Whether a card may be written to a repository (`is_ours`); False without an answer.

    Args:
        repo_id: owner/name of a repository that is there.
        token, repo_type: as for `upload`.
        revision: a branch that is there.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = _card(repo_id, token, revision, repo_type)
    except (LocalEntryNotFoundError, HfHubHTTPError):
        return False
    return path is None or is_ours(path)


def keep_card(repo_id: str, folder: Path, token: bool | str | None = None, revision: str | None = None) -> None:
    """Let a folder have the card of a repository that someone edited there.

    Args:
        repo_id, token, revision: as for `has_free_card`.
        folder: what will be uploaded.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = _card(repo_id, token, revision)
    except (LocalEntryNotFoundError, HfHubHTTPError):
        return
    if path is not None and not is_ours(path):
        (folder / "README.md").write_bytes(path.read_bytes())


def upload(
    folder: str | Path,
    repo_id: str,
    *,
    repo_type: str = "model",
    revision: str | None = None,
    token: bool | str | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    create_pr: bool = False,
    delete_patterns: list[str] | None = None,
    card: Callable[[str], str] | None = None,
    **more: Any,
) -> str:
    """Put a folder's files into a repository, made where there is none; files that are there already are not sent.

    Compiled Python files stay here.

    Args:
        folder: local.
        repo_id, repo_type, revision, token, more: as for `create`.
        commit_message, commit_description: of the commit.
        create_pr: open a pull request rather than change the branch.
        delete_patterns: files there that go if the folder lacks them.
        card: gives the text of README.md for the repository's name with owner; one that someone edited there stays.

    Returns:
        The address of the commit, or of the pull request.

    Raises:
        OSError: no way to the Hub, or no right to write there; nothing has changed but that the repository may be new.
    """
    from huggingface_hub import HfApi

    name = create(repo_id, repo_type=repo_type, revision=revision, token=token, **more)
    ignored = ["*.pyc"]  # beside the module of an installed metric
    if card is not None:
        if has_free_card(name, token, revision, repo_type):
            Path(folder, "README.md").write_text(card(name), encoding="utf-8")
        else:
            ignored.append("README.md")
    commit = HfApi(token=token).upload_folder(
        repo_id=name,
        folder_path=folder,
        repo_type=repo_type,
        revision=revision,
        commit_message=commit_message,
        commit_description=commit_description,
        create_pr=create_pr,
        delete_patterns=delete_patterns,
        ignore_patterns=ignored,
    )
    return commit.pr_url if create_pr and commit.pr_url else commit.commit_url


def find(
    name_or_path: str | os.PathLike,
    filename: str,
    *,
    expected: bool = False,
    revision: str | None = None,
    token: bool | str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path | None:
    """A file of a folder or repository, from the cache where it is there.

    Args:
        name_or_path: folder, or owner/name.
        filename: in it; may lie in a subfolder.
        expected: without a way to the Hub, what the cache does not hold is an error; else it counts as not there.
        revision, token, cache_dir, local_files_only: as for `hf_hub_download`.

    Returns:
        Where it is, or None: there is none.

    Raises:
        OSError: no such repository, no right to read it, or no answer whether it holds the file.
    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    if Path(name_or_path).is_dir():
        path = Path(name_or_path, filename)
        return path if path.is_file() else None
    try:
        return Path(
            hf_hub_download(
                str(name_or_path),
                filename,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
            )
        )
    except LocalEntryNotFoundError as error:  # offline and not in the cache; also an EntryNotFoundError
        said = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else None
        known = try_to_load_from_cache(str(name_or_path), filename, cache_dir=cache_dir, revision=revision or "main")
        if (
            (said is None and not expected)
            or (said is not None and said.response.status_code == 404)  # a mirror's, without the Hub's own words
            or known is _CACHED_NO_EXIST
        ):
            return None
        raise OSError(
            f"{name_or_path}: {filename} is not in the cache, and the Hub gives no answer: {error.__cause__ or error}"
        ) from error
    except EntryNotFoundError:
        return None


def download(name_or_path: str | os.PathLike, filenames: tuple[str, ...], **where: Any) -> Path:
    """The first of these files that a folder or repository has; `where` as for `find`.

    Raises:
        FileNotFoundError: it has none of them, or there is no such folder.
        OSError: as `find`.
    """
    check_exists(name_or_path)
    unknown: OSError | None = None
    for name in filenames:
        try:
            path = find(name_or_path, name, expected=True, **where)
        except OSError as error:  # offline a later one may be in the cache
            unknown = unknown or error
            continue
        if path is not None:
            return path
    raise unknown or FileNotFoundError(f"{name_or_path} holds no {' and no '.join(filenames)}")
