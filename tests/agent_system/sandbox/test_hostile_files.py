"""Programs that want to read what is not theirs, or leave something behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent_system.sandbox.jail import scratch
from tests.agent_system.sandbox.arena import Arena, offered
from tests.agent_system.sandbox.outside import run_outside
from tests.house.source import ROOT

SECRET = "hidden-tests-of-a-dataset"
TRY = """
import os, sys
try:
    print(({attack}), end="")
except (OSError, KeyError, IndexError) as error:
    print("refused", end="")
"""
# Takes the rights to the private folder away, where modes can be changed.
MODE_0 = "try:\n    os.chmod('.', 0)\nexcept PermissionError:\n    pass"
# Expressions that give away the secret where nothing stops them. {secret} is a file that everyone may read.
READ = {
    "dataset": "open('{secret}').read()",
    "home_folder": "'seen' if os.listdir('{home}') else ''",
    "project": "open('{root}/README.md').read()[:20]",
    "system_users": "open('/etc/passwd').read()",
    "proc_own_environment": "open('/proc/self/environ').read() or 'empty'",
    "proc_others_environment": "open('/proc/{pid}/environ', 'rb').read()",
    "proc_others_memory": "open('/proc/{pid}/maps').read()",
    "proc_init": "open('/proc/1/cmdline').read() or 'empty'",
    "symlink": "os.symlink('{secret}', 'link') or open('link').read()",
    "hard_link": "os.link('{secret}', 'own') or open('own').read()",
    "symlink_to_folder": "os.symlink('{folder}', 'up') or open('up/secret').read()",
    "relative_path": "open('../../../../../../../../..{secret}').read()",
    "copy": "__import__('shutil').copy('{secret}', 'copy') and open('copy').read()",
    "mmap": "__import__('mmap').mmap(os.open('{secret}', 0), 0, prot=1).read()",
    "kernel_log": "open('/dev/kmsg', 'rb').read(10)",
    "disk": "open('/dev/vda', 'rb').read(10)",
    "device_node": "os.mknod('disk', 0o60666, os.makedev(254, 0)) or open('disk', 'rb').read(10)",
}
WORKS_OUTSIDE = {
    "dataset",
    "project",
    "system_users",
    "proc_own_environment",
    "symlink",
    "hard_link",
    "symlink_to_folder",
    "relative_path",
    "copy",
    "mmap",
}
WRITE = {
    "outside": "open('{folder}/left', 'w').write('x')",
    "replace": "os.replace('{secret}', '{folder}/other')",
    "remove": "os.unlink('{secret}')",
    "standard_library": "open(os.__file__, 'a').write('# ours')",
    "bytecode": "open(os.path.dirname(os.__file__) + '/sitecustomize.py', 'w').write('')",
    "through_symlink": "os.symlink('{folder}', 'out') or open('out/left', 'w').write('x')",
    "root": "open('/left', 'w').write('x')",
    "device": "open('/dev/left', 'w').write('x')",
    "rename_into": "open('a', 'w').close() or os.rename('a', '{folder}/left')",
    "chmod": "os.chmod('{secret}', 0o777)",
}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, object]:
    """A readable secret in a folder that anyone may write to: only a sandbox can be in the way."""
    for folder in (tmp_path, *tmp_path.parents):
        if os.stat(folder).st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o666)
    os.utime(secret, (10**9, 10**9))
    return {"secret": secret, "folder": tmp_path, "home": Path.home(), "root": ROOT, "pid": os.getpid()}


@pytest.mark.promised_by("landlock")
@pytest.mark.parametrize("name", READ)
async def test_nothing_can_be_read(
    name: str, arena: Arena, places: dict[str, object], tmp_path: Path
) -> None:
    program = TRY.format(attack=READ[name].format(**places))
    if name in WORKS_OUTSIDE and arena.level == offered()[0]:
        work = tmp_path / "work"
        work.mkdir()
        assert run_outside(program, work) not in ("refused", "")
    result = await arena.attack(program)
    assert (result.stdout, result.reason) == ("refused", "ok")


@pytest.mark.promised_by("landlock")
@pytest.mark.parametrize("name", WRITE)
async def test_nothing_can_be_written(
    name: str, arena: Arena, places: dict[str, object], tmp_path: Path
) -> None:
    mode = os.stat(tmp_path / "secret").st_mode
    result = await arena.attack(TRY.format(attack=WRITE[name].format(**places)))
    assert (result.stdout, result.reason) == ("refused", "ok")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret"]
    assert ((tmp_path / "secret").read_text(), os.stat(tmp_path / "secret").st_mode) == (SECRET, mode)


# What Landlock does not look at, or not before Linux 6.2.
CHANGE = {
    "mode": "os.chmod('{secret}', 0o777) or 'done'",
    "mode_of_a_descriptor": "os.fchmod(os.open('{secret}', os.O_RDONLY), 0o777) or 'done'",
    "times": "os.utime('{secret}') or 'done'",
    "times_of_a_descriptor": "os.utime(os.open('{secret}', os.O_RDONLY), (1, 1)) or 'done'",
    "truncate": "os.truncate('{secret}', 0) or 'done'",
    "truncate_when_opened_to_read": "os.open('{secret}', os.O_RDONLY | os.O_TRUNC) and 'done'",
    "truncate_when_opened_for_nothing": "os.open('{secret}', 3 | os.O_TRUNC) and 'done'",
    "mode_of_the_library": "os.chmod(sys.path[0] + '/os.py', 0o600) or 'done'",
}


@pytest.mark.promised_by("seccomp", each=True)
@pytest.mark.parametrize("name", CHANGE)
async def test_mode_times_and_length_of_no_file_can_be_changed(
    name: str, arena: Arena, places: dict[str, object], tmp_path: Path
) -> None:
    program = TRY.format(attack=CHANGE[name].format(**places))
    secret = tmp_path / "secret"
    before = secret.stat()
    if arena.level == offered()[0] and "library" not in name:
        assert run_outside(program, tmp_path) == "done"
        changed = secret.stat()
        assert (changed.st_mode, changed.st_mtime, changed.st_size) != (
            before.st_mode,
            before.st_mtime,
            before.st_size,
        )
        secret.write_text(SECRET)
        secret.chmod(0o666)
        os.utime(secret, (10**9, 10**9))
    assert (await arena.attack(program)).stdout == "refused"
    after = secret.stat()
    assert (after.st_mode, after.st_mtime, after.st_size) == (before.st_mode, before.st_mtime, before.st_size)


@pytest.mark.promised_by("seccomp", each=True)
async def test_nothing_of_the_host_can_be_locked(arena: Arena) -> None:
    program = """
import fcntl, struct, sys
attempts = [lambda: fcntl.flock(file, fcntl.LOCK_SH), lambda: fcntl.lockf(file, fcntl.LOCK_SH, 1, 7)]
attempts += [lambda n=n: fcntl.fcntl(file, n, struct.pack("hhqqi", 0, 0, 7, 1, 0)) for n in (5, 6, 37, 38)]  # by process, by descriptor
for path in ("/dev/null", sys.path[0] + "/os.py"):
    with open(path) as file:
        for attempt in attempts:
            try:
                attempt()
                print("locked")
            except PermissionError:
                print("refused")
"""
    assert (await arena.attack(program)).stdout == "refused\n" * 12


@pytest.mark.promised_by("namespaces")
async def test_devices_can_be_used_and_not_changed(arena: Arena) -> None:
    before = os.stat("/dev/null")
    program = """
import os
print(open("/dev/null", "w").write("x"), open("/dev/null").read() == "", len(open("/dev/urandom", "rb").read(9)))
for attempt in (lambda: os.utime("/dev/null"), lambda: os.utime(os.open("/dev/null", os.O_RDWR)), lambda: os.chmod("/dev/null", 0o666)):
    try:
        attempt()
        print("changed")
    except OSError:
        print("refused")
"""
    assert (await arena.attack(program)).stdout == "1 True 9\n" + "refused\n" * 3
    after = os.stat("/dev/null")
    assert (after.st_mode, after.st_mtime, after.st_atime) == (
        before.st_mode,
        before.st_mtime,
        before.st_atime,
    )


@pytest.mark.promised_by("namespaces")
async def test_the_name_of_the_host_is_not_seen(arena: Arena) -> None:
    own = os.uname().nodename
    assert (
        await arena.attack("import os, socket\nprint(os.uname().nodename, socket.gethostname())")
    ).stdout == "sandbox sandbox\n"
    assert os.uname().nodename == own


@pytest.mark.promised_by("every")
async def test_no_secret_is_in_the_environment(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", SECRET)
    program = "import ctypes, os\nc = ctypes.CDLL(None)\nc.getenv.restype = ctypes.c_char_p\nprint(dict(os.environ), c.getenv(b'API_KEY'))"
    assert SECRET in run_outside(program, tmp_path, **os.environ)
    assert (await arena.attack(program)).stdout == "{} None\n"


@pytest.mark.promised_by("every")
async def test_no_descriptor_is_inherited(arena: Arena, tmp_path: Path) -> None:
    program = """
import os
found = []
for fd in range(4, 4096):
    try:
        os.fstat(fd)
    except OSError:
        continue
    found.append(fd)
    for act in (lambda: os.write(fd, b"x" * 64), lambda: os.read(fd, 64)):
        try:
            print("reached", fd, act())
        except OSError:
            pass
print(all(fd >= 200 for fd in found))
"""
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        assert (await arena.attack(program)).stdout == "True\n"


@pytest.mark.promised_by("namespaces")
async def test_the_view_is_small(arena: Arena) -> None:
    program = """
import os
print(*(sorted(os.listdir(place)) for place in ("/", "/usr/lib", "/dev", "/proc/self/fd", "/run", "/tmp")), os.getcwd(), os.getpid() < 100)
foreign = [f"/usr/lib/python/{name}" for name in ("site-packages", "dist-packages")]
print([name for name in foreign if os.path.exists(name) and os.listdir(name)], os.listdir("/proc"), os.listdir("/proc/self"))
"""
    view = (
        "['dev', 'proc', 'run', 'tmp', 'usr'] ['packages', 'python'] "
        "['fd', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom'] ['0', '1', '2'] "
        "['stderr', 'stdin', 'stdout'] [] /tmp True\n"
        "[] ['self'] ['fd']\n"
    )
    assert (await arena.attack(program)).stdout == view


@pytest.mark.promised_by("every")
async def test_the_private_folder_is_empty_for_every_test(arena: Arena) -> None:
    program = f"import os\nprint(os.listdir('.'))\nos.mkdir('d')\nopen('d/f', 'w').write('kept?')\n{MODE_0}"
    results = await arena.sandbox.run_tests(program, ["", "", ""])
    assert [(r.stdout, r.ok) for r in results] == [("[]\n", True)] * 3
    arena.nothing_is_left()


@pytest.mark.promised_by("every")
async def test_mode_and_times_of_the_private_folder_say_nothing_of_earlier_tests(arena: Arena) -> None:
    program = """
import os, time
now, folder = time.time(), os.stat(".")
print(oct(folder.st_mode), [now - 10 < at <= now + 1 for at in (folder.st_atime, folder.st_mtime, folder.st_ctime)])
for change in (lambda: os.utime(".", (12345, 67890)), lambda: os.chmod(".", 0o1017)):
    try:
        change()
    except PermissionError:
        pass
"""
    results = await arena.sandbox.run_tests(program, ["", "", ""])
    assert [(r.stdout, r.ok) for r in results] == [("0o40700 [True, True, True]\n", True)] * 3


async def test_a_folder_that_is_hard_to_remove_is_removed(arena: Arena) -> None:
    program = f"""
import os
os.mkdir("moved-1"); os.mkdir("moved-1/moved-2"); os.mkdir("shut", 0)
for name in ("a\\nb", "-rf", "\\udcff", " ", "*"):
    open(name, "w").close()
for _ in range(300):
    os.mkdir("deep")
    os.chdir("deep")
os.symlink("/", "root")
{MODE_0}
print("made")
"""
    results = await arena.sandbox.run_tests(program, ["", ""])
    assert [(r.stdout, r.ok) for r in results] == [("made\n", True)] * 2
    arena.nothing_is_left()


async def test_imports_work_and_packages_of_the_trainer_are_not_there(arena: Arena) -> None:
    program = """
import concurrent.futures, xml.etree.ElementTree, decimal, threading, hashlib, statistics, csv
try:
    import torch
except ImportError:
    print('none')
"""
    result = await arena.attack(program)
    assert (result.stdout, result.stderr) == ("none\n", "")
    assert (
        sys.executable not in (await arena.sandbox.run("import sys; print(sys.path, sys.executable)")).stdout
    )


def test_a_link_in_place_of_the_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "home"
    (kept / "documents").mkdir(parents=True)
    (kept / "documents" / "thesis").write_text("x")
    (tmp_path / "run").symlink_to(kept)
    scratch.remove(str(tmp_path / "run"))
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(kept)
    (inside / "deep").mkdir()
    (inside / "deep" / "link").symlink_to(kept / "documents")
    scratch.remove(str(inside))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["documents", "home", "thesis"]
