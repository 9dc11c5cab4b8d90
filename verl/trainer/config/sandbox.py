"""Keys under `sandbox`: where programs that agents wrote are run."""

from dataclasses import dataclass

from verl.trainer.config.spec import key, section


@dataclass
class SandboxLimitsConfig:
    cpu_s: float = key(5.0, "CPU seconds of each process of a run, rounded up to whole ones")
    wall_s: float = key(10.0, "seconds on the clock of a run")
    memory_mb: int = key(512, "MiB that a process may take, and that all processes of a run may hold together")
    processes: int = key(16, "processes and threads of a run at a time")
    file_mb: int = key(16, "MiB of one file")
    disk_mb: int = key(32, "MiB of all files of a run")
    output_kb: int = key(256, "KiB each of stdout, stderr and a returned value; a program that writes more is ended")


@dataclass
class SandboxConfig:
    backend: str = key("local", "local (processes on this machine) | http (a SandboxFusion server)")
    level: str = key("auto", "local: auto (the strongest that works) | namespaces | landlock | seccomp | rlimits")
    min_level: str = key(
        "landlock", "local: a run that would be held less well than this is refused: namespaces | landlock | seccomp | rlimits"
    )
    workers: int = key(0, "runs at a time; 0 takes the number of cores (local) or 32 (http)")
    packages: list[str] = key([], "local: packages beside the standard library that programs may import, with all that these import")
    max_timeouts: int = key(2, "tests of one program that may run out of time; the rest is skipped then; 0 runs all")
    url: str = key("", "http: address of the server, such as http://localhost:8080")
    request_timeout_s: float = key(30.0, "http: seconds that a request may take beyond its run, waiting at the server included")
    limits: SandboxLimitsConfig = section(SandboxLimitsConfig)
