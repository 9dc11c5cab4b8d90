"""Four levels of isolation, with the guarantees of each and how to make it available."""

from __future__ import annotations

from verl.trainer.config.sandbox import LEVELS

PROMISES = {
    "rlimits": "limits of CPU, memory, processes and files; its processes are killed at the end",
    "seccomp": "no network, no other programs, no signals to others, no tracing, no kernel interfaces beyond files, memory and threads",
    "landlock": "no files but the standard library and a private folder",
    "namespaces": "a file system, process table, network and users of its own; the private folder cannot grow beyond its limit",
}
REMEDIES = {
    "seccomp": "needs Linux on x86-64 or aarch64 with CONFIG_SECCOMP_FILTER",
    "landlock": "needs Linux 5.13 or newer with landlock in the boot option lsm=",
    "namespaces": (
        "needs unprivileged user namespaces: sysctl user.max_user_namespaces above 0; on Ubuntu "
        "also kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt "
        "seccomp=unconfined --security-opt apparmor=unconfined, in Kubernetes a pod with "
        "seccompProfile Unconfined"
    ),
}


def rank(level: str) -> int:
    """Return the index of a level, 0 for the weakest."""
    return LEVELS.index(level)


def describe(level: str) -> str:
    """Return all guarantees of a level in one line."""
    return "; ".join(PROMISES[name] for name in LEVELS[: rank(level) + 1])


def level_error(level: str | None, min_level: str, missing: dict[str, str]) -> str:
    """Return the message for a machine without the required level: the levels found and required,
    and how to enable missing ones.

    Args:
        level: the strongest level that works; None for none.
        min_level: `sandbox.min_level`.
        missing: error by level that does not work.
    """
    causes = "\n".join(
        f"  {name}: {error}; {REMEDIES[name]}" if name in REMEDIES else f"  {name}: {error}"
        for name, error in missing.items()
    )
    shortfall = f"this machine offers {level!r} only" if level else "no level works on this machine"
    way_out = "or set sandbox.url to the address of a SandboxFusion server, or a lower sandbox.min_level"
    return f"sandbox.min_level={min_level}, but {shortfall}:{causes}\n  {way_out}"
