"""What is asked of the Hub, and what is made of its answers, with stand-ins for the functions of huggingface_hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import _CACHED_NO_EXIST
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from surprise_hf import hub


def no_answer(status: int | None = None) -> LocalEntryNotFoundError:
    """As `hf_hub_download` has it: without a way to the Hub, or where that answers with this status."""
    error = LocalEntryNotFoundError("not in the cache")
    error.__cause__ = None if status is None else HfHubHTTPError("sorry", response=Mock(status_code=status))
    return error


@pytest.mark.parametrize(
    ("error", "known", "expected", "absent"),
    [
        (no_answer(), None, False, True),
        (no_answer(), None, True, False),
        (no_answer(), _CACHED_NO_EXIST, True, True),  # from an earlier answer
        (no_answer(503), None, False, False),
        (no_answer(503), None, True, False),
        (no_answer(503), _CACHED_NO_EXIST, True, True),
        (no_answer(404), None, True, True),  # a mirror's
        (EntryNotFoundError("no such file"), None, True, True),
    ],
)
def test_no_file_and_no_answer_are_not_the_same(monkeypatch, error, known, expected, absent):
    asked = Mock(side_effect=error)
    cached = Mock(return_value=known)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", asked)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    where: dict[str, Any] = {"revision": "v2", "token": "t", "cache_dir": "c", "local_files_only": True}
    if absent:
        assert hub.find("me/model", "a.json", expected=expected, **where) is None
    else:
        with pytest.raises(OSError, match=r"me/model: a\.json is not in the cache, and the Hub gives no answer"):
            hub.find("me/model", "a.json", expected=expected, **where)
    asked.assert_called_once_with("me/model", "a.json", **where)
    for call in cached.call_args_list:
        assert call.kwargs == {"cache_dir": "c", "revision": "v2"}


def test_a_repository_that_is_not_there_is_no_file_that_is_not_there(monkeypatch):
    error = RepositoryNotFoundError("no such repository", response=Mock(status_code=404))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=error))
    with pytest.raises(RepositoryNotFoundError):
        hub.find("me/model", "a.json")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (["one", "two"], "one"),
        ([EntryNotFoundError("x"), "two"], "two"),
        ([no_answer(), "two"], "two"),  # offline the second may be in the cache
        ([no_answer(503), EntryNotFoundError("x")], OSError),
        ([EntryNotFoundError("x"), no_answer()], OSError),
        ([EntryNotFoundError("x"), EntryNotFoundError("x")], FileNotFoundError),
    ],
)
def test_the_first_of_two_files(monkeypatch, answers, found):
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=answers))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: None)
    if isinstance(found, str):
        assert hub.download("me/model", ("a", "b")) == Path(found)
        return
    words = "me/model holds no a and no b" if found is FileNotFoundError else "the Hub gives no answer"
    with pytest.raises(OSError, match=words) as info:
        hub.download("me/model", ("a", "b"))
    assert isinstance(info.value, FileNotFoundError) == (found is FileNotFoundError)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("owner/name", None),
        ("name", None),
        ("no name", FileNotFoundError),
        ("a/b/c", FileNotFoundError),
        ("./owner/name", FileNotFoundError),
        ("", FileNotFoundError),
        ("a folder", None),
        ("file", NotADirectoryError),
    ],
)
def test_names_that_no_repository_could_have(tmp_path, monkeypatch, name, error):
    monkeypatch.chdir(tmp_path)
    Path("a folder").mkdir()
    Path("file").touch()
    if error is None:
        hub.check_exists(name)
    else:
        with pytest.raises(error):
            hub.check_exists(name)


@pytest.fixture
def api(monkeypatch) -> list[tuple[str, dict[str, Any]]]:
    """The calls of `HfApi`, each with its token."""
    calls: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def __init__(self, token: Any = None) -> None:
            self.token = token

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            calls.append(("create_repo", {"repo_id": repo_id, "token": self.token, **options}))
            return SimpleNamespace(repo_id=f"me/{repo_id}")

        def create_branch(self, repo_id: str, **options: Any) -> None:
            calls.append(("create_branch", {"repo_id": repo_id, "token": self.token, **options}))

        def upload_folder(self, folder_path: Path, create_pr: bool, **options: Any) -> Any:
            files = {path.name: path.read_text() for path in Path(folder_path).iterdir()}
            calls.append(("upload_folder", {"token": self.token, "files": files, **options}))
            return SimpleNamespace(commit_url="commit", pr_url="request" if create_pr else None)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    return calls


@pytest.mark.parametrize("free", [True, False])
def test_a_folder_goes_where_it_is_told(api, tmp_path, monkeypatch, free):
    """With the card of the repository's whole name, unless someone edited the one on that branch."""
    asked = Mock(return_value=free)
    monkeypatch.setattr(hub, "has_free_card", asked)
    Path(tmp_path, "a.json").write_text("{}")
    told = {"commit_message": "word", "commit_description": "words", "delete_patterns": ["*.old"]}
    where: dict[str, Any] = {"repo_type": "dataset", "revision": "v2", "token": "t"}
    made = {"private": True, "exist_ok": False, "resource_group_id": "r"}
    found = hub.upload(tmp_path, "index", **where, **made, **told, card=lambda name: f"# {name}")
    assert found == "commit"
    asked.assert_called_once_with("me/index", "t", "v2", "dataset")
    kind = {"token": "t", "repo_type": "dataset"}
    files, ignored = {"a.json": "{}"}, ["*.pyc"]
    if free:
        files["README.md"] = "# me/index"
    else:
        ignored.append("README.md")
    assert api == [
        ("create_repo", {"repo_id": "index", **kind, **made}),
        ("create_branch", {"repo_id": "me/index", **kind, "branch": "v2", "exist_ok": True}),
        ("upload_folder", {"repo_id": "me/index", **kind, "revision": "v2", "files": files, **told}
         | {"ignore_patterns": ignored}),
    ]  # fmt: skip


def test_a_pull_request_is_told_by_its_own_address(api, tmp_path):
    assert hub.upload(tmp_path, "index", create_pr=True) == "request"
    assert [name for name, _ in api] == ["create_repo", "upload_folder"]  # no branch where none is named
    assert api[0][1]["exist_ok"]
    assert api[0][1]["private"] is None
