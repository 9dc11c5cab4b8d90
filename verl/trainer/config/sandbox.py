"""Keys under `sandbox`: execution of programs that agents wrote."""

from dataclasses import dataclass

from verl.trainer.config.spec import LONGEST_S, ConfigError, check_values, key, section
from verl.utils.names import without_password

# Weakest first; each level includes the guarantees of those before it.
LEVELS = ("rlimits", "seccomp", "landlock", "namespaces")
# Decided by what the environment and the tools say, at the start of a run.
PROGRAMS = "an environment or an agent that runs programs"
LOCAL = "sandbox.backend=local (a SandboxFusion server has its own limits)"


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
    file_mb: int = key(16, "maximum size of one file, in MiB", ge=1, le=2**40, effect=LOCAL)
    disk_mb: int = key(32, "maximum size of all files of one execution, in MiB", ge=1, le=2**40, effect=LOCAL)
    output_kb: int = key(
        256,
        "maximum size of stdout, stderr and a returned value each, in KiB; a program that writes "
        "more is killed",
        ge=1,
        le=2**40,
    )


@dataclass
class SandboxConfig:
    backend: str = key(
        "local",
        "local (processes on this machine) | http (a SandboxFusion server)",
        choices=("local", "http"),
    )
    level: str = key(
        "auto",
        "isolation of programs; auto takes the strongest level that works",
        choices=("auto", *LEVELS),
        effect="sandbox.backend=local",
    )
    min_level: str = key(
        "landlock",
        "weakest isolation that is accepted; with less, the training run is refused",
        choices=LEVELS,
        effect="sandbox.backend=local",
    )
    workers: int = key(
        0, "maximum number of concurrent executions; 0: the number of cores (local) or 32 (http)", ge=0
    )
    packages: list[str] = key(
        [],
        "packages that programs may import beside the standard library; list their dependencies as well",
        effect="sandbox.backend=local",
    )
    max_timeouts: int = key(
        2, "after this many timeouts of one program its other tests are skipped; 0 runs all tests", ge=0
    )
    url: str = key(
        "",
        "address of the SandboxFusion server, such as http://localhost:8080",
        secret=True,
        effect="sandbox.backend=http",
    )
    request_timeout_s: float = key(
        30.0,
        "time limit of a request in addition to that of its execution, in seconds; includes "
        "queueing at the server",
        gt=0,
        le=LONGEST_S,
        effect="sandbox.backend=http",
    )
    limits: SandboxLimitsConfig = section(SandboxLimitsConfig)


def check_sandbox(config: SandboxConfig) -> None:
    """Raise ConfigError for a value that cannot be used, a level below min_level, or a server
    without an address.
    """
    check_values(config, "sandbox")
    if config.level != "auto" and LEVELS.index(config.level) < LEVELS.index(config.min_level):
        raise ConfigError(
            f"sandbox.level={config.level} is weaker than sandbox.min_level={config.min_level}; "
            "change one of them"
        )
    if config.backend == "http" and not config.url.startswith(("http://", "https://")):
        url = without_password(config.url)
        raise ConfigError(
            f"sandbox.url={url!r}: sandbox.backend=http needs the server's address, such as "
            "http://localhost:8080"
        )
