"""Forms of contest programs: how they read, print, recurse and end. Plain Python runs each with the input below in a file as its stdin."""

STDIN = "3 4\n1 2 3 4\nabc def\n\n5\r\nlast é line"

READING = {
    "input": "n, m = map(int, input().split()); print(n + m, input(), input())",
    "input until the end": "while True:\n    try:\n        print(input())\n    except EOFError:\n        break",
    "a prompt": "print(input('first: ')); print(input())",
    "the streams' names": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n    print(s.name, s.mode, s.buffer.name, s.buffer.mode, s.fileno())",
    "the streams' attributes": (
        "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
        "    print(s, s.encoding, s is sys.stdout or s.errors, s.newlines, s.closed, s.line_buffering, s.write_through, s.isatty(), s.readable(), s.writable())\n"
        "    print(type(s), type(s.buffer), type(s.buffer.raw), s.buffer.raw.name, s.buffer.raw.mode, s.buffer.raw.closefd)"
    ),
    "the fast-input header": (
        "import os, sys\nfrom io import BytesIO, IOBase\n"
        "class FastIO(IOBase):\n    newlines = 0\n"
        "    def __init__(self, file):\n"
        "        self._fd = file.fileno()\n        self.buffer = BytesIO()\n"
        "        self.writable = 'x' in file.mode or 'r' not in file.mode\n"
        "        self.write = self.buffer.write if self.writable else None\n"
        "    def read(self):\n        while True:\n"
        "            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))\n"
        "            if not b:\n                break\n"
        "            ptr = self.buffer.tell()\n            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)\n"
        "        self.newlines = 0\n        return self.buffer.read()\n"
        "    def readline(self):\n        while self.newlines == 0:\n"
        "            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))\n"
        "            self.newlines = b.count(b'\\n') + (not b)\n"
        "            ptr = self.buffer.tell()\n            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)\n"
        "        self.newlines -= 1\n        return self.buffer.readline()\n"
        "    def flush(self):\n        if self.writable:\n"
        "            os.write(self._fd, self.buffer.getvalue())\n            self.buffer.truncate(0), self.buffer.seek(0)\n"
        "class IOWrapper(IOBase):\n"
        "    def __init__(self, file):\n"
        "        self.buffer = FastIO(file)\n        self.flush = self.buffer.flush\n        self.writable = self.buffer.writable\n"
        "        self.write = lambda s: self.buffer.write(s.encode('ascii'))\n"
        "        self.read = lambda: self.buffer.read().decode()\n        self.readline = lambda: self.buffer.readline().decode()\n"
        "sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)\n"
        "input = lambda: sys.stdin.readline().rstrip('\\r\\n')\n"
        "n, m = map(int, input().split())\nprint(n * m, sum(map(int, input().split())))\nsys.stdout.flush()"
    ),
    "read": "import sys; print(repr(sys.stdin.read()))",
    "readline": "import sys\ninput = sys.stdin.readline\nprint(repr(input()), repr(input()))",
    "readlines": "import sys; print(sys.stdin.readlines())",
    "lines of the stream": "import sys\nfor line in sys.stdin:\n    print(repr(line))",
    "an iterator of lines": "import sys\nit = iter(sys.stdin.read().splitlines())\nprint(next(it), list(it))",
    "the buffer": "import sys; print(sys.stdin.buffer.read())",
    "the buffer's lines": "import sys; print(sys.stdin.buffer.readline(), sys.stdin.buffer.readlines())",
    "the buffer's peek": "import sys; print(sys.stdin.buffer.peek(3)[:3], sys.stdin.buffer.read(4))",
    "the raw stream": "import sys; print(sys.stdin.buffer.raw.readall())",
    "readinto": "import sys\nb = bytearray(5)\nprint(sys.stdin.buffer.readinto(b), b)",
    "open(0)": "print(open(0).read())",
    "open(0) of bytes": "print(open(0, 'rb').read())",
    "lines of open(0)": "n, *rest = open(0)\nprint(n, len(rest))",
    "fdopen": "import os; print(os.fdopen(0).read())",
    "os.read": "import os; print(os.read(0, 1 << 25))",
    "os.read of the size": "import os; print(os.read(0, os.fstat(0).st_size))",
    "the kind of the input": "import os, stat; print(stat.S_ISREG(os.fstat(0).st_mode), os.fstat(0).st_size, os.isatty(0))",
    "seek": "import sys\nfirst = sys.stdin.read()\nsys.stdin.seek(0)\nprint(first == sys.stdin.read(), sys.stdin.seekable(), sys.stdin.tell())",
    "lseek": "import os; print(os.lseek(0, 0, os.SEEK_END), os.lseek(0, 0, os.SEEK_SET), os.read(0, 3))",
    "pread": "import os; print(os.pread(0, 5, 4))",
    "mmap": "import mmap\nwith mmap.mmap(0, 0, access=mmap.ACCESS_READ) as m:\n    print(m[:], m.readline())",
    "mmap by its protection": "import mmap; print(mmap.mmap(0, 0, prot=mmap.PROT_READ).read(3))",
    "mmap private": "import mmap, os; print(mmap.mmap(0, os.fstat(0).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)[:4])",
    "/dev/stdin": "print(open('/dev/stdin').read())",
    "/dev/stdin twice": "print(open('/dev/stdin').readline(), open('/dev/stdin').readline())",
    "/dev/fd/0": "print(open('/dev/fd/0', 'rb').read())",
    "/proc/self/fd/0": "print(open('/proc/self/fd/0').read())",
    "a path": "from pathlib import Path; print(Path('/dev/stdin').read_text().split(), Path('/dev/stdin').exists())",
    "the size of a path": "import os; print(os.path.getsize('/dev/stdin'), os.stat('/dev/stdin').st_size, os.path.isfile('/dev/stdin'))",
    "a low-level path": "import os; print(os.read(os.open('/dev/stdin', os.O_RDONLY), 99))",
    "fileinput": "import fileinput\nprint([line for line in fileinput.input()])",
    "fileinput of a path": "import fileinput\nprint([line for line in fileinput.input('/dev/stdin')])",
    "stdin as an argument": "import sys\nsys.stdin = open('/dev/stdin')\nprint(input(), input())",
    "__stdin__": "import sys; print(sys.__stdin__.read(), sys.__stdin__ is sys.stdin)",
    "detach": "import io, sys\nsys.stdin = io.TextIOWrapper(sys.stdin.detach(), encoding='utf-8')\nprint(input())",
    "reconfigure": "import sys\nsys.stdin.reconfigure(encoding='latin-1')\nsys.stdout.reconfigure(line_buffering=True)\nprint(sys.stdin.read())",
    "codecs": "import codecs, sys; print(codecs.getreader('utf-8')(sys.stdin.buffer).read())",
    "a buffer of the input": "import io, os, sys\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\nprint(input(), input())",
    "StringIO": "import io, sys\nsys.stdin = io.StringIO(sys.stdin.read())\nprint(input(), input())",
    "select": "import select, sys; print(bool(select.select([sys.stdin], [], [], 0)[0]), input())",
    "dup": "import os\nfd = os.dup(0)\nprint(os.read(fd, 3), os.read(0, 3))",
    "a file of the judge": "import os, sys\nif os.path.exists('input.txt'):\n    sys.stdin = open('input.txt')\nprint(input())",
    "the environment of the judge": "import os, sys\nif os.environ.get('ONLINE_JUDGE') is None and 'LOCAL' in os.environ:\n    raise SystemExit\nprint(len(sys.argv))",
    "csv": "import csv, sys; print(list(csv.reader(sys.stdin, delimiter=' ')))",
    "a generator of tokens": "import sys\ndef tokens():\n    for line in sys.stdin:\n        yield from line.split()\nt = tokens()\nprint(next(t), list(t))",
    "a closed input": "import sys\nsys.stdin.close()\ntry:\n    input()\nexcept ValueError as error:\n    print(error)",
}

PRINTING = {
    "write": "import sys; sys.stdout.write('a\\n'); print(sys.stdout.write('bc\\n'))",
    "the output's buffer": "import sys; sys.stdout.buffer.write(b'raw\\xff\\n'.replace(b'\\xff', b'')); sys.stdout.buffer.flush()",
    "writelines": "import sys; sys.stdout.writelines(['a\\n', 'b\\n'])",
    "os.write": "import os; os.write(1, b'by number\\n')",
    "open(1)": "with open(1, 'w', closefd=False) as out:\n    print('opened', file=out)",
    "/dev/stdout": "with open('/dev/stdout', 'w') as out:\n    out.write('by path\\n')",
    "/dev/fd/1": "with open('/dev/fd/1', 'w') as out:\n    out.write('by path\\n')",
    "/dev/stderr": "with open('/dev/stderr', 'w') as out:\n    out.write('an error\\n')\nprint(1)",
    "another print": "from functools import partial\nprint = partial(print, end=';', sep=',')\nprint(1, 2); print(3, flush=True)",
    "StringIO for stdout": "import io, sys\nout, sys.stdout = sys.stdout, io.StringIO()\nprint('kept')\nout.write(sys.stdout.getvalue())",
    "redirect_stdout": "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    print(1)\nprint(out.getvalue() * 2)",
    "stderr": "import sys; print('debug', file=sys.stderr); print(2)",
    "a buffered writer": "import sys\nfrom io import TextIOWrapper\nsys.stdout = TextIOWrapper(sys.stdout.buffer, write_through=True)\nprint(3)",
    "at the exit": "import atexit, io, os, sys\nsys.stdout = io.BytesIO()\natexit.register(lambda: os.write(1, sys.stdout.getvalue()))\nsys.stdout.write(b'late\\n')",
    "a last word": "class A:\n    def __del__(self):\n        print('bye')\na = A()\nprint('hello')",
    "a file that is not closed": "out = open('/dev/stdout', 'w')\nout.write('late\\n')",
    "a stream that is not flushed": "import io, sys\nout = io.TextIOWrapper(sys.stdout.buffer)\nout.write('late\\n')",
    "a class for stdout": "import sys\nclass Out:\n    write = staticmethod(sys.stdout.write)\n    flush = sys.stdout.flush\nsys.stdout = Out()\nprint(1)",
    "a detached stdout": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8', newline='\\r\\n')\nprint(1)",
    "a closed stdout": "import sys\nprint(1)\nsys.stdout.close()",
    "line ends of output": "import sys\nsys.stdout.write('a\\r\\nb\\rc\\n')",
    "letters": "print('é', '北京', '\\u2028', chr(0x1F600))",
    "a long integer": "print(10**5000)",
    "a long integer of a text": "print(int('9' * 6000) % 10**9, len(str(7**9999)))",
    "a long integer of a format": "print(f'{3**12000}'[:9], '%d' % 10**4400 == '1' + '0' * 4400)",
    "the limit of digits": "import sys\nsys.set_int_max_str_digits(0)\nprint(sys.get_int_max_str_digits(), len(str(1 << 20000)))",
    "decimals": "from decimal import Decimal, getcontext\ngetcontext().prec = 5000\nprint(len(str(Decimal(2).sqrt())))",
    "much output": "print('\\n'.join(map(str, range(3000))))",
}

RECURSION = "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
CACHED = "from functools import lru_cache\n@lru_cache(None)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
RUNNING = {
    "a deep recursion": f"import sys\nsys.setrecursionlimit(10**6)\n{RECURSION}print(f(20000))",
    "a deep recursion with a cache": f"import sys\nsys.setrecursionlimit(10**6)\n{CACHED}print(f(20000))",
    "a stack without limit": f"import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\nsys.setrecursionlimit(10**6)\n{CACHED}print(f(20000))",
    "a stack up to the hard limit": (
        "import resource, sys\nsoft, hard = resource.getrlimit(resource.RLIMIT_STACK)\n"
        f"resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))\nsys.setrecursionlimit(10**6)\n{RECURSION}print(f(20000))"
    ),
    "a larger stack": (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (0x10000000, resource.RLIM_INFINITY))\n"
        f"sys.setrecursionlimit(0x100000)\n{CACHED}print(f(20000))"
    ),
    "a smaller stack again": "import resource as r\nr.setrlimit(r.RLIMIT_STACK, (1 << 28, 1 << 29))\nprint(r.getrlimit(r.RLIMIT_STACK))",
    "a thread with a stack": (
        f"import sys, threading\nthreading.stack_size(1 << 26)\nsys.setrecursionlimit(10**6)\n{CACHED}"
        "t = threading.Thread(target=lambda: print(f(20000)))\nt.start()\nt.join()"
    ),
    "a thread with a large stack": (
        f"import sys\nimport threading\nthreading.stack_size(2**27)\nsys.setrecursionlimit(10**6)\n{CACHED}"
        "def main():\n    print(f(20000), input())\nthreading.Thread(target=main).start()"
    ),
    "a thread with a huge stack": (
        f"import threading, sys\nthreading.stack_size(512 * 1024 * 1024)\nsys.setrecursionlimit(10**9)\n{CACHED}"
        "t = threading.Thread(target=lambda: print(f(20000)))\nt.start()\nt.join()"
    ),
    "a thread with a gigantic stack": (
        "import _thread, threading\nprint(threading.stack_size(), _thread.stack_size(1 << 30), threading.stack_size(1 << 26))\n"
        "threading.stack_size(1 << 30)\nprint(threading.stack_size())\nt = threading.Thread(target=lambda: print(input()))\nt.start()\nt.join()"
    ),
    "a size that is no stack": "import threading\ntry:\n    threading.stack_size(5)\nexcept ValueError as error:\n    print(error)",
    "a recursion of generators": (
        "from types import GeneratorType\n"
        "def bootstrap(f, stack=[]):\n"
        "    def wrapped(*args, **kwargs):\n"
        "        if stack:\n            return f(*args, **kwargs)\n"
        "        to = f(*args, **kwargs)\n"
        "        while True:\n"
        "            if type(to) is GeneratorType:\n                stack.append(to)\n                to = next(to)\n"
        "            else:\n                stack.pop()\n                if not stack:\n                    return to\n                to = stack[-1].send(to)\n"
        "    return wrapped\n"
        "@bootstrap\ndef f(n):\n    yield 0 if n == 0 else 1 + (yield f(n - 1))\nprint(f(5000))"
    ),
    "main": "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
    "exit": "print(1)\nexit()\nprint(2)",
    "quit": "print(1)\nquit(0)",
    "sys.exit": "import sys\nprint(1)\nsys.exit()\nprint(2)",
    "sys.exit with a number": "import sys\nprint(1)\nsys.exit(3)",
    "sys.exit with a text": "import sys\nprint(1)\nsys.exit('wrong')",
    "SystemExit": "print(1)\nraise SystemExit(0)",
    "os._exit": "import os, sys\nprint(1)\nsys.stdout.flush()\nos._exit(0)",
    "an error": "print(1)\nprint(1 / 0)",
    "its own file": "import os\nprint(os.path.basename(__file__), os.path.isabs(__file__), __name__, __doc__, __package__)",
    "its names": "print(sorted(globals()))",
    "annotations": "from __future__ import annotations\nx: List[int] = [1]\nprint(x, __annotations__)",
    "classes": "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass A:\n    x: int\n    y: list = field(default_factory=list)\nprint(sorted([A(2), A(1)]))",
    "pickles": "import pickle\nclass A:\n    pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "no module": "import sys\ndel sys.modules['__main__']\nprint(4)",
    "the module": "import __main__, sys\nx = 3\nprint(__main__.x, sys.modules['__main__'].x, sys.argv[0] == 'program.py')",
    "exec": "exec('y = 4\\nprint(y)')\nprint(eval('y + 1'))",
    "help": "print(callable(help), callable(exit), license is not None)",
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print(7)\nasyncio.run(main())",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n    print(list(pool.map(abs, [-1, 2])))",
    "a fork": "import os\npid = os.fork()\nif pid == 0:\n    os._exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "an alarm": "import signal\ndef stop(*_):\n    raise TimeoutError\nsignal.signal(signal.SIGALRM, stop)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntry:\n    while True:\n        pass\nexcept TimeoutError:\n    print('over')",
    "faulthandler": "import faulthandler\nfaulthandler.enable()\nprint(1)",
    "garbage": "import gc\ngc.disable()\nprint(gc.isenabled())",
    "random numbers": "import random\nrandom.seed(7)\nprint(random.random(), random.sample(range(50), 5))",
    "ctypes": "import ctypes; print(ctypes.c_int64(1 << 63).value)",
    "modules": "import array, bisect, cmath, collections, decimal, fractions, heapq, itertools, math, operator, queue, statistics, string, struct, textwrap, unicodedata\nprint(math.isqrt(50), statistics.mean([1, 2]))",
    "hashes": "import hashlib, zlib; print(hashlib.md5(b'a').hexdigest(), hashlib.sha256(b'a').hexdigest(), zlib.crc32(b'a'))",
    "a file": "with open('a.txt', 'w') as f:\n    f.write('kept')\nprint(open('a.txt').read())",
    "a temporary file": "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n    f.write('x')\n    f.seek(0)\n    print(f.read())",
    "mmap of its own": "import mmap; m = mmap.mmap(-1, 64, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m[:3] = b'abc'; print(m[:3])",
    "the platform": "import platform, sys\nprint(platform.python_implementation(), sys.version_info[:2], sys.byteorder, sys.maxsize, sys.platform)",
}
# Programs of other inputs.
OTHER_INPUTS = {
    "no input": ("try:\n    input()\nexcept EOFError as error:\n    print(error)", ""),
    "no input by its size": ("import os; print(os.read(0, os.fstat(0).st_size))", ""),
    "a large input": ("import sys\nn, *rest = map(int, sys.stdin.buffer.read().split())\nprint(n, len(rest), sum(rest))", "7 " + "123456 " * 60_000),
    "a large input by its size": ("import os; print(len(os.read(0, os.fstat(0).st_size).split()))", "123456 " * 60_000),
    "a large input by its path": ("print(sum(map(int, open('/dev/stdin').read().split())))", "123456 " * 60_000),
    "an input that is not read": ("print(1)", "1 " * 100_000),
    "line ends": ("import sys; print(repr(sys.stdin.read()))", "a\rb\r\nc\x0c\x1c\u2028\u0085d\n\n"),
    "line ends of input()": ("print([input() for _ in range(3)])", "a\x0cb\u2028c\r\nd\re\n"),
    "a byte order mark and a NUL": ("print(repr(input()))", "\ufeff1\x002\n"),
    "a long integer as its input": ("print(int(input()) + 1)", "9" * 5000 + "\n"),
}  # fmt: skip
