"""Keys under `sandbox`: execution of programs that agents wrote."""

from dataclasses import dataclass

from verl.trainer.config.spec import LONGEST_S, ConfigError, check_values, key, section
from verl.utils.names import without_password

# Weakest first; each level includes the guarantees of those before it.
LEVELS = ("rlimits", "seccomp", "landlock", "namespaces")
# Decided by what the environment and the tools say, at the start of a run.
PROGRAMS = "an environment or an agent that runs programs"
LOCAL = "programs on this machine (a SandboxFusion server has its own limits): sandbox.url="


@dataclass
class SandboxLimitsConfig:
    cpu_s: float = key(
        5.0,
        "CPU time limit of each process of an execution, in seconds, rounded up to whole seconds",
        gt=0,
        le=LONGEST_S,
        effect=LOCAL,
    )
    wall_s: float = key(10.0, "wall-clock time limit of one execution, in seconds", gt=0, le=LONGEST_S)
    memory_mb: int = key(
        512,
        "memory limit of each process, and of all processes of one execution together, in MiB",
        ge=1,
        le=2**40,
    )
    processes: int = key(
        16, "maximum number of concurrent processes and threads of one execution", ge=1, effect=LOCAL
    )
    disk_mb: int = key(
        32, "maximum size of a file, and of all files of one execution, in MiB", ge=1, le=2**40, effect=LOCAL
    )
    output_kb: int = key(
        256,
        "maximum size of stdout, stderr and a returned value each, in KiB; a program that writes "
        "more is killed",
        ge=1,
        le=2**40,
    )


@dataclass
class SandboxConfig:
    url: str = key(
        "",
        "address of a SandboxFusion server that runs programs, such as http://localhost:8080; "
        "empty: processes of this machine do",
        secret=True,
    )
    min_level: str = key(
        "landlock",
        "weakest isolation that is accepted; with less, the training run is refused",
        choices=LEVELS,
        effect=LOCAL,
    )
    workers: int = key(
        0, "maximum number of concurrent executions; 0: the number of cores, or 32 with sandbox.url", ge=0
    )
    packages: list[str] = key(
        [],
        "packages that programs may import beside the standard library; list their dependencies as well",
        effect=LOCAL,
    )
    limits: SandboxLimitsConfig = section(SandboxLimitsConfig)


def check_sandbox(config: SandboxConfig) -> None:
    """Raise ConfigError for a value that cannot be used, or a server whose address is none."""
    check_values(config, "sandbox")
    if config.url and not config.url.startswith(("http://", "https://")):
        url = without_password(config.url)
        raise ConfigError(
            f"sandbox.url={url!r}: expected the address of a SandboxFusion server, such as "
            "http://localhost:8080"
        )
