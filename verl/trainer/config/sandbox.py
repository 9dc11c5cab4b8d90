"""Keys under `sandbox`: where programs that agents wrote are run."""

from dataclasses import dataclass

from verl.trainer.config.spec import LONGEST_S, ConfigError, check_values, key, section
from verl.utils.names import without_password

# Weakest first; each keeps what those before it promise.
LEVELS = ("rlimits", "seccomp", "landlock", "namespaces")
LOCAL = "sandbox.backend=local (a SandboxFusion server has limits of its own)"


@dataclass
class SandboxLimitsConfig:
    cpu_s: float = key(5.0, "CPU seconds of each process of a run, rounded up to whole ones", gt=0, le=LONGEST_S, effect=LOCAL)
    wall_s: float = key(10.0, "seconds on the clock of a run", gt=0, le=LONGEST_S)
    memory_mb: int = key(512, "MiB that a process may take, and that all processes of a run may hold together", ge=1, le=2**40)
    processes: int = key(16, "processes and threads of a run at a time", ge=1, effect=LOCAL)
    file_mb: int = key(16, "MiB of one file", ge=1, le=2**40, effect=LOCAL)
    disk_mb: int = key(32, "MiB of all files of a run", ge=1, le=2**40, effect=LOCAL)
    output_kb: int = key(256, "KiB each of stdout, stderr and a returned value; a program that writes more is ended", ge=1, le=2**40)


@dataclass
class SandboxConfig:
    backend: str = key("local", "local (processes on this machine) | http (a SandboxFusion server)", choices=("local", "http"))
    level: str = key(
        "auto", "how programs are held; auto takes the strongest that works", choices=("auto", *LEVELS), effect="sandbox.backend=local"
    )
    min_level: str = key(
        "landlock", "a run that would be held less well than this is refused", choices=LEVELS, effect="sandbox.backend=local"
    )
    workers: int = key(0, "runs at a time; 0 takes the number of cores (local) or 32 (http)", ge=0)
    packages: list[str] = key(
        [], "packages beside the standard library that programs may import, with all that these import", effect="sandbox.backend=local"
    )
    max_timeouts: int = key(2, "tests of one program that may run out of time; the rest is skipped then; 0 runs all", ge=0)
    url: str = key("", "address of the server, such as http://localhost:8080", secret=True, effect="sandbox.backend=http")
    request_timeout_s: float = key(
        30.0,
        "seconds that a request may take beyond its run, waiting at the server included",
        gt=0,
        le=LONGEST_S,
        effect="sandbox.backend=http",
    )
    limits: SandboxLimitsConfig = section(SandboxLimitsConfig)


def check_sandbox(config: SandboxConfig) -> None:
    """Raise ConfigError for a value that cannot be used, a level below the lowest allowed, and a server without an address."""
    check_values(config, "sandbox")
    if config.level != "auto" and LEVELS.index(config.level) < LEVELS.index(config.min_level):
        raise ConfigError(f"sandbox.level={config.level} is weaker than sandbox.min_level={config.min_level}; change one of them")
    if config.backend == "http" and not config.url.startswith(("http://", "https://")):
        shown = without_password(config.url)
        raise ConfigError(f"sandbox.url={shown!r}: sandbox.backend=http needs the server's address, such as http://localhost:8080")
