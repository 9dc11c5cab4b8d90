"""Numbers of system calls: those that a program may make, and those that are refused by name.

Each entry is `name number-on-x86_64 number-on-aarch64`, `-` where the machine has no such call.
Calls in no table fail with "not implemented", so that the C library can fall back to older ones.
"""

from __future__ import annotations

MACHINES = ("x86_64", "aarch64")

# Files, memory, threads, clocks, own identity, waiting, and pipes and socket pairs that are already
# open.
ALLOWED = """
read 0 63 | write 1 64 | close 3 57 | stat 4 - | fstat 5 80 | lstat 6 - | poll 7 - | lseek 8 62 | mprotect 10 226 | munmap 11 215
brk 12 214 | rt_sigaction 13 134 | rt_sigprocmask 14 135 | rt_sigreturn 15 139 | pread64 17 67 | pwrite64 18 68 | readv 19 65
writev 20 66 | access 21 - | pipe 22 - | select 23 - | sched_yield 24 124 | mremap 25 216 | mincore 27 232 | madvise 28 233 | dup 32 23
dup2 33 - | pause 34 - | nanosleep 35 101 | getitimer 36 102 | alarm 37 - | setitimer 38 103 | getpid 39 172 | sendfile 40 71
sendto 44 206 | recvfrom 45 207 | sendmsg 46 211 | recvmsg 47 212 | sendmmsg 307 269 | recvmmsg 299 243 | shutdown 48 210
getsockname 51 204 | getpeername 52 205 | getsockopt 55 209 | fork 57 - | vfork 58 - | exit 60 93 | wait4 61 260 | uname 63 160
ftruncate 77 46 | getdents 78 - | getcwd 79 17 | chdir 80 49 | fchdir 81 50 | rename 82 - | mkdir 83 - | rmdir 84 - | creat 85 -
link 86 - | unlink 87 - | symlink 88 - | readlink 89 - | umask 95 166 | gettimeofday 96 169 | getrlimit 97 163 | getrusage 98 165
sysinfo 99 179 | times 100 153 | getuid 102 174 | getgid 104 176 | setpgid 109 154 | getppid 110 173 | getpgrp 111 - | setsid 112 157
getgroups 115 158 | getresuid 118 148 | getresgid 120 150 | getpgid 121 155 | getsid 124 156 | rt_sigpending 127 136
rt_sigtimedwait 128 137 | rt_sigsuspend 130 133 | sigaltstack 131 132 | statfs 137 43 | fstatfs 138 44 | getpriority 140 141
sched_getparam 143 121 | sched_getscheduler 145 120 | sched_get_priority_max 146 125 | sched_get_priority_min 147 126
sched_rr_get_interval 148 127 | arch_prctl 158 - | setrlimit 160 164 | gettid 186 178 | readahead 187 213 | time 201 - | futex 202 98
sched_getaffinity 204 123 | epoll_create 213 - | getdents64 217 61 | set_tid_address 218 96 | restart_syscall 219 128
fadvise64 221 223 | timer_create 222 107 | timer_settime 223 110 | timer_gettime 224 108 | timer_getoverrun 225 109
timer_delete 226 111 | clock_gettime 228 113 | clock_getres 229 114 | clock_nanosleep 230 115 | exit_group 231 94 | epoll_wait 232 -
epoll_ctl 233 21 | waitid 247 95 | mkdirat 258 34 | newfstatat 262 79 | unlinkat 263 35 | renameat 264 38 | linkat 265 37
symlinkat 266 36 | readlinkat 267 78 | faccessat 269 48 | pselect6 270 72 | ppoll 271 73 | set_robust_list 273 99
get_robust_list 274 100 | splice 275 76 | tee 276 77 | epoll_pwait 281 22 | timerfd_create 283 85 | eventfd 284 - | fallocate 285 47
timerfd_settime 286 86 | timerfd_gettime 287 87 | eventfd2 290 19 | epoll_create1 291 20 | dup3 292 24 | pipe2 293 59 | preadv 295 69
pwritev 296 70 | getcpu 309 168 | renameat2 316 276 | getrandom 318 278 | membarrier 324 283 | copy_file_range 326 285 | preadv2 327 286
pwritev2 328 287 | statx 332 291 | rseq 334 293 | close_range 436 436 | faccessat2 439 439 | epoll_pwait2 441 441 | geteuid 107 175
getegid 108 177 | futex_waitv 449 449
"""

# Not made, but return success: a program's data need not survive a crash, and these calls load
# every disk of the host, `sync` without being interruptible by a signal.
IGNORED = """
sync 162 81 | fsync 74 82 | fdatasync 75 83 | sync_file_range 277 84 | msync 26 227
"""

# Change a file that its user owns or may write, by name or through a read-only descriptor. Landlock
# does not check them (`truncate` only from Linux 6.2 on), so they are refused wherever a program
# can see files outside the sandbox.
FILE_CHANGES = """
chmod 90 - | fchmod 91 52 | fchmodat 268 53 | utime 132 - | utimes 235 - | utimensat 280 88 | truncate 76 45
"""

# Fail with "operation not permitted". `setsockopt` could enlarge a socket's buffer, which no memory
# limit counts; socket pairs need none of its options. Locks of a device or library affect every
# process of the host, and no limit bounds their number.
REFUSED = """
socket 41 198 | connect 42 203 | bind 49 200 | listen 50 201 | accept 43 202 | accept4 288 242 | execve 59 221 | execveat 322 281
ptrace 101 117 | process_vm_readv 310 270 | process_vm_writev 311 271 | kcmp 312 272 | pidfd_open 434 434 | pidfd_getfd 438 438
pidfd_send_signal 424 424 | mount 165 40 | umount2 166 39 | pivot_root 155 41 | chroot 161 51 | setns 308 268 | unshare 272 97
open_tree 428 428 | move_mount 429 429 | fsopen 430 430 | fsconfig 431 431 | fsmount 432 432 | fspick 433 433
mount_setattr 442 442 | bpf 321 280 | perf_event_open 298 241 | userfaultfd 323 282 | io_uring_setup 425 425
io_uring_enter 426 426 | io_uring_register 427 427 | keyctl 250 219 | add_key 248 217 | request_key 249 218 | init_module 175 105
finit_module 313 273 | delete_module 176 106 | kexec_load 246 104 | kexec_file_load 320 294 | reboot 169 142 | swapon 167 224
swapoff 168 225 | setuid 105 146 | setgid 106 144 | setreuid 113 145 | setregid 114 143 | setresuid 117 147 | setresgid 119 149
setgroups 116 159 | setfsuid 122 151 | setfsgid 123 152 | capset 126 91 | chown 92 - | fchown 93 55 | lchown 94 - | fchownat 260 54
mknod 133 - | mknodat 259 33 | shmget 29 194 | shmat 30 196 | shmctl 31 195 | semget 64 190 | semop 65 193 | semctl 66 191
msgget 68 186 | msgsnd 69 189 | msgrcv 70 188 | msgctl 71 187 | mq_open 240 180 | mq_unlink 241 181 | memfd_create 319 279
memfd_secret 447 447 | settimeofday 164 170 | clock_settime 227 112 | clock_adjtime 305 266 | adjtimex 159 171 | sethostname 170 161
setdomainname 171 162 | acct 163 89 | syslog 103 116 | quotactl 179 60 | personality 135 92 | setpriority 141 140
sched_setscheduler 144 119 | sched_setattr 314 274 | sched_setparam 142 118 | ioprio_set 251 30 | nfsservctl 180 42
name_to_handle_at 303 - | open_by_handle_at 304 - | fanotify_init 300 262 | inotify_init 253 - | inotify_init1 294 26
lookup_dcookie 212 18 | iopl 172 - | ioperm 173 - | modify_ldt 154 - | landlock_create_ruleset 444 444 | landlock_add_rule 445 445
landlock_restrict_self 446 446 | seccomp 317 277 | setxattr 188 5 | lsetxattr 189 6 | fsetxattr 190 7 | mbind 237 235
migrate_pages 256 238 | move_pages 279 239 | set_mempolicy 238 237 | vhangup 153 58 | process_madvise 440 440
process_mrelease 448 448 | mlock 149 228 | mlock2 325 284 | mlockall 151 230 | setsockopt 54 208 | flock 73 32
"""

# Calls of the tables, some of them refused to programs, that start a program: its folder, user,
# limits and confinement, and the end of its processes.
STARTING = """
mount 165 40 | umount2 166 39 | chmod 90 - | fchmod 91 52 | fchmodat 268 53 | utimensat 280 88
chown 92 - | fchownat 260 54 | setresuid 117 147 | setresgid 119 149 | capset 126 91 | prctl 157 167
clone 56 220 | kill 62 129 | pidfd_open 434 434
landlock_create_ruleset 444 444 | landlock_add_rule 445 445 | landlock_restrict_self 446 446
"""

# Decided by their arguments in `seccomp.py`.
BY_ARGUMENTS = """
fcntl 72 25 | clone 56 220 | clone3 435 435 | socketpair 53 199 | ioctl 16 29 | prctl 157 167
prlimit64 302 261 | sched_setaffinity 203 122 | open 2 - | openat 257 56 | mmap 9 222
kill 62 129 | tkill 200 130 | tgkill 234 131 | rt_sigqueueinfo 129 138 | rt_tgsigqueueinfo 297 240
"""


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return name -> number on a machine of `MACHINES`; calls that it does not have are left out."""
    column = 1 + MACHINES.index(machine)
    rows = [entry.split() for line in table.strip().splitlines() for entry in line.split(" | ")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
