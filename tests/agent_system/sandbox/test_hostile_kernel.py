"""Programs that try the kernel's interfaces."""

from __future__ import annotations

import platform

import pytest

from agent_system.sandbox.jail import seccomp, syscalls
from tests.agent_system.sandbox.arena import Arena

pytestmark = pytest.mark.promised_by("seccomp")
C = "import ctypes, errno, os, sys\nc = ctypes.CDLL(None, use_errno=True)\n"
MACHINE = platform.machine()
NUMBERS = syscalls.numbers(syscalls.REFUSED, MACHINE)
NAMES = [
    "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "open_tree", "move_mount", "fsopen",
    "bpf", "perf_event_open",
    "userfaultfd", "io_uring_setup", "keyctl", "add_key", "request_key", "init_module", "kexec_load",
    "reboot", "name_to_handle_at",
    "open_by_handle_at", "memfd_create", "shmget", "semget", "msgget", "mq_open", "personality", "seccomp",
    "landlock_restrict_self",
    "settimeofday", "flock", "sethostname", "syslog", "mknodat", "fchownat", "setpriority", "mlock", "capset",
]  # fmt: skip


async def test_refused_calls(arena: Arena) -> None:
    program = f"""
{C}for number in {[NUMBERS[name] for name in NAMES]}:
    print(c.syscall(number, 0, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])
"""
    result = await arena.attack(program)
    assert result.stdout.splitlines() == ["-1 EPERM"] * len(NAMES)


@pytest.mark.parametrize(
    "flag", [0x10000000, 0x20000000, 0x40000000, 0x00020000], ids=["user", "pid", "net", "mount"]
)
async def test_no_namespaces_inside(flag: int, arena: Arena) -> None:
    clone = syscalls.numbers(syscalls.BY_ARGUMENTS, MACHINE)
    program = (
        f"{C}print(c.unshare({flag}), errno.errorcode[ctypes.get_errno()])\n"
        f"print(c.syscall({clone['clone']}, {flag | 17}, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])\n"
        f"print(c.syscall({clone['clone3']}, 0, 0), errno.errorcode[ctypes.get_errno()])"
    )
    assert (await arena.attack(program)).stdout == "-1 EPERM\n-1 EPERM\n-1 ENOSYS\n"


async def test_unknown_calls_are_not_implemented(arena: Arena) -> None:
    program = f"{C}print([c.syscall(number) for number in (500, 511, 1000, 100000)], errno.errorcode[ctypes.get_errno()])"
    assert (await arena.attack(program)).stdout == "[-1, -1, -1, -1] ENOSYS\n"


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86-64 has calls of a second kind")
@pytest.mark.parametrize("code", ["b8140000000f05", "b8270000400f05"], ids=["int80", "x32"])
async def test_calls_of_another_kind_end_the_program(code: str, arena: Arena) -> None:
    machine_code = code.replace("0f05", "cd80") if code.startswith("b814") else code
    program = f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
page.write(bytes.fromhex("{machine_code}c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print("calling", flush=True)
print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""
    result = await arena.attack(program)
    assert (result.stdout, result.reason, result.exit_code) == ("calling\n", "signal", -31)


async def test_terminals_and_process_controls_are_refused(arena: Arena) -> None:
    program = (
        f"{C}print([c.ioctl(0, number, b'x') for number in (0x5412, 0x5401, 0x540E)], "
        "[c.prctl(number, 0) for number in (4, 22, 35, 1)])"
    )
    assert (await arena.attack(program)).stdout == "[-1, -1, -1] [-1, -1, -1, -1]\n"


async def test_no_right_can_be_gained(arena: Arena) -> None:
    program = f"{C}print([c.setuid(0), c.setgid(0), c.setresuid(0, 0, 0)], c.prctl(39, 0, 0, 0, 0), os.getgroups() if os.getuid() else [])"
    assert (await arena.attack(program)).stdout.startswith("[-1, -1, -1] 1")


@pytest.mark.parametrize("machine", syscalls.MACHINES)
@pytest.mark.parametrize("signals", [True, False])
@pytest.mark.parametrize("changes", [True, False])
def test_the_filter_answers_every_number_as_its_tables_say(
    machine: str, signals: bool, changes: bool
) -> None:
    code = seccomp.assemble(machine, signals, changes)
    allowed = set(syscalls.numbers(syscalls.ALLOWED, machine).values())
    refused = set(syscalls.numbers(syscalls.REFUSED, machine).values())
    ignored = set(syscalls.numbers(syscalls.IGNORED, machine).values())
    changing = set(syscalls.numbers(syscalls.FILE_CHANGES, machine).values())
    assert not ignored & (allowed | refused | changing) and not changing & (allowed | refused)
    (allowed if changes else refused).update(changing)
    by_arguments = syscalls.numbers(syscalls.BY_ARGUMENTS, machine)
    signalling = {by_arguments[name] for name in seccomp.SIGNALLING}
    assert not allowed & refused and not (allowed | refused) & set(by_arguments.values())
    for number in range(600):
        if number in set(by_arguments.values()) - signalling:
            continue
        right = seccomp.ALLOW if number in allowed or (signals and number in signalling) else seccomp.UNKNOWN
        right = seccomp.REFUSED if number in refused or (not signals and number in signalling) else right
        right = seccomp.IGNORED if number in ignored else right
        assert evaluate(code, machine, number) == right, number
    assert evaluate(code, machine, 39 | 1 << 30) == seccomp.KILL
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert evaluate(code, other, 0) == seccomp.KILL
    assert evaluate(code, machine, by_arguments["clone"], 0x10000011) == seccomp.REFUSED
    assert evaluate(code, machine, by_arguments["clone"], 0x003D0F00) == seccomp.ALLOW
    for family, kind, right in (
        (1, 1, seccomp.ALLOW), (1, 0x80001, seccomp.ALLOW), (1, 0x80805, seccomp.ALLOW),
        (2, 1, seccomp.REFUSED), (1, 2, seccomp.REFUSED), (1, 0x80002, seccomp.REFUSED),
        (1, 3, seccomp.REFUSED), (1, 4, seccomp.REFUSED),
    ):  # fmt: skip
        assert evaluate(code, machine, by_arguments["socketpair"], family, kind) == right
    for flags, right in (
        (0x01, seccomp.ALLOW),
        (0x22, seccomp.ALLOW),
        (0x21, seccomp.NO_MEMORY),
        (0x8021, seccomp.NO_MEMORY),
    ):
        assert evaluate(code, machine, by_arguments["mmap"], 0, 4096, 3, flags) == right
    # To truncate a file takes the right to write it.
    for flags, right in (
        (0, True),
        (0o1000, changes),
        (0o1001, True),
        (0o1002, True),
        (0o1003, changes),
        (3, True),
        (0o101101, True),
    ):
        for name, before in (("open", (0,)), ("openat", (0, 0))):
            if name in by_arguments:
                answer = evaluate(code, machine, by_arguments[name], *before, flags)
                assert answer == (seccomp.ALLOW if right else seccomp.REFUSED)


@pytest.mark.promised_by("seccomp", each=True)
async def test_flushing_disks_does_nothing(arena: Arena) -> None:
    program = f"""
{C}
for fd in (os.open("own", os.O_RDWR | os.O_CREAT), os.open(sys.path[0] + "/os.py", os.O_RDONLY)):
    for _ in range(3000):
        os.sync()
        os.fsync(fd)
        os.fdatasync(fd)
    print(c.syncfs(fd), errno.errorcode[ctypes.get_errno()])
"""
    result = await arena.attack(program)
    assert (result.stdout, result.reason) == ("-1 ENOSYS\n" * 2, "ok")


@pytest.mark.promised_by("seccomp", each=True)
async def test_timers_that_the_kernel_holds_are_few(arena: Arena) -> None:
    program = f"""
{C}
made = 0
while made < 10**5 and c.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0:
    made += 1
print(made <= 256, errno.errorcode[ctypes.get_errno()])
"""
    assert (await arena.attack(program)).stdout == "True EAGAIN\n"


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_a_worker_may_do_no_more_than_start_programs(machine: str) -> None:
    parts = seccomp.assemble(machine, signals=False, changes=False)
    starting = set(syscalls.numbers(syscalls.STARTING, machine).values())
    decided = set(syscalls.numbers(syscalls.BY_ARGUMENTS, machine).values())
    for number in set(range(600)) - (decided - starting):
        worker, program = (_answer(part, machine, number) for part in parts)
        assert worker == (seccomp.ALLOW if number in starting else evaluate(parts, machine, number)), number
        assert number in starting or program == seccomp.ALLOW
    assert len(parts.program) // 8 < 100 < len(parts.worker) // 8


def evaluate(parts: seccomp.Filter, machine: str, number: int, *arguments: int) -> int:
    """What the filter answers: the stricter answer of its two parts, as the kernel takes it."""
    answers = [_answer(part, machine, number, *arguments) for part in parts]
    return min(answers, key=lambda answer: -1 if answer == seccomp.KILL else answer)


def _answer(code: bytes, machine: str, number: int, *arguments: int) -> int:
    """What a part answers, by a BPF machine of our own."""
    import struct

    data = {seccomp.NUMBER: number, seccomp.ARCHITECTURE: seccomp.AUDIT_ARCH[machine]}
    data |= {seccomp.ARGUMENTS + 8 * place: argument for place, argument in enumerate(arguments)}
    program = list(struct.iter_unpack("=HBBI", code))
    accumulator = at = 0
    while True:
        operation, yes, no, value = program[at]
        at += 1
        if operation == seccomp.RETURN:
            return value
        if operation == seccomp.LOAD:
            accumulator = data.get(value, 0)
        elif operation == seccomp.JUMP:
            at += value
        else:
            hit = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_FROM: accumulator >= value,
                seccomp.JUMP_ANY_BIT: bool(accumulator & value),
            }[operation]
            at += yes if hit else no
