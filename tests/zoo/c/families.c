/* Members by how they descend from the agent. */
#include "zoo.h"
#include <pthread.h>
#include <sys/ptrace.h>

static uint32_t plain(void)
{
    if (child() == 0) {
        if (child() == 0) leaf();
        leaf();
    }
    return 2;
}

/* The agent becomes a shell that runs `script`, says `settled` after so many arrivals, and waits or exits. */
static _Noreturn void shell(const char *script, int arrivals)
{
    char start[1000], text[4096];
    int length = snprintf(start, sizeof start, "ZOO='%s' DIR='%s'\n%s\n\"$ZOO\" :herald \"$DIR\" %d && echo settled\n", exe, dir, script, arrivals);
    if (length < 0 || (size_t)length >= sizeof start) fail("the path is too long for a script");
    snprintf(text, sizeof text, "%s%s", start, strcmp(words[3], "exit") == 0 ? "exit 0\n" : "wait; read line\n");
    execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    fail("exec of /bin/sh");
}

static uint32_t shell_job(void) { shell("\"$ZOO\" :leaf \"$DIR\" - &\n\"$ZOO\" :leaf \"$DIR\" - & ", 2); }
static uint32_t shell_monitor(void) { shell("set -m\n\"$ZOO\" :leaf \"$DIR\" - &\n\"$ZOO\" :leaf \"$DIR\" - & ", 2); }
static uint32_t shell_orphan(void) { shell("(\"$ZOO\" :leaf \"$DIR\" - &)\n(setsid \"$ZOO\" :leaf \"$DIR\" - &) ", 2); }
static uint32_t nohup(void) { shell("nohup \"$ZOO\" :leaf \"$DIR\" - >/dev/null 2>&1 & ", 1); }

static uint32_t new_session(void)
{
    if (child() == 0) {
        setsid();
        if (child() == 0) leaf();
        leaf();
    }
    return 2;
}

static uint32_t daemon_twice(void)
{
    if (orphan() == 0) leaf();
    if (orphan() == 0) leaf();
    return 2;
}

static uint32_t many_daemons(void)
{
    for (int i = 0; i < 100; i++)
        if (orphan() == 0) leaf();
    return 100;
}

static uint32_t deep(void)
{
    if (child() == 0) {
        for (int i = 1; i < 100; i++) {
            if (i % 3 == 0) setsid();
            if (child() != 0) leaf();
        }
        leaf();
    }
    return 100;
}

static uint32_t subreaper(void)
{
    if (orphan() == 0) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        for (int i = 0; i < 5; i++)
            if (orphan() == 0) leaf();
        leaf();
    }
    return 6;
}

/* Siblings of their maker: of the agent, where it is no init, and of a daemon. */
static uint32_t clone_parent(void)
{
    uint32_t arrivals = 3;
    pid_t pid = bare_clone(CLONE_PARENT | SIGCHLD);
    if (pid == 0) leaf();
    /* The init of a PID namespace may have no siblings. */
    if (pid < 0 && errno != EINVAL) fail("clone(CLONE_PARENT)");
    if (pid > 0) arrivals++;
    if (child() == 0) {
        setsid();
        pid = bare_clone(CLONE_PARENT | SIGCHLD);
        if (pid < 0) fail("clone(CLONE_PARENT)");
        if (pid == 0 && (pid = bare_clone(CLONE_PARENT | SIGCHLD)) < 0) fail("clone(CLONE_PARENT)");
        leaf();
    }
    return arrivals;
}

/* The parent stands still in vfork for as long as its child lives. */
static uint32_t vfork_without_exec(void)
{
    if (orphan() == 0) {
        arrive();
        if (vfork() == 0) {
            bound();
            arrive();
            for (;;) syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
        }
        _exit(0);
    }
    return 2;
}

/* No signal at its end: only a wait with __WALL or __WCLONE gets it. */
static uint32_t no_exit_signal(void)
{
    pid_t pid = bare_clone(0);
    if (pid < 0) fail("clone(0)");
    if (pid == 0) {
        setsid();
        pid = bare_clone(SIGUSR1);
        if (pid < 0) fail("clone(SIGUSR1)");
        leaf();
    }
    return 2;
}

static char stacks[3][65536] __attribute__((aligned(64)));

static int leaf_thread(void *arg) { (void)arg; bound(); leaf(); }

/* Three processes with one memory. */
static uint32_t shared_memory(void)
{
    if (orphan() == 0) {
        for (int i = 0; i < 3; i++)
            if (clone(leaf_thread, stacks[i] + sizeof stacks[i], CLONE_VM | CLONE_FS | CLONE_FILES | (i == 0 ? 0 : SIGCHLD), NULL) < 0)
                fail("clone(CLONE_VM)");
        leaf();
    }
    return 4;
}

static void *waits_for_the_leader(void *arg)
{
    (void)arg;
    char path[64], stat[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    for (char *state = NULL; state == NULL || state[2] != 'Z'; pause_ms(1)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, stat, sizeof stat - 1);
        if (length <= 0) fail(path);
        close(fd);
        stat[length] = 0;
        state = strrchr(stat, ')');
    }
    leaf();
}

/* State Z, and alive. */
static uint32_t dead_leader(void)
{
    if (orphan() == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, waits_for_the_leader, NULL) != 0) fail("pthread_create");
        if (pthread_create(&thread, NULL, waits_for_the_leader, NULL) != 0) fail("pthread_create");
        syscall(SYS_exit, 0);
    }
    return 2;
}

/* As above, with children of the threads. */
static void *has_a_child_without_a_leader(void *arg)
{
    if (child() == 0) leaf();
    waits_for_the_leader(arg);
    return NULL;
}

static uint32_t dead_leader_children(void)
{
    if (orphan() == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, has_a_child_without_a_leader, NULL) != 0) fail("pthread_create");
        syscall(SYS_exit, 0);
    }
    return 2;
}

static void *forks_and_stays(void *arg) { (void)arg; if (child() == 0) leaf(); stay(); }
static void *forks_and_ends(void *arg)
{
    (void)arg;
    if (child() == 0) leaf();
    syscall(SYS_exit, 0);
    return NULL;
}

static uint32_t threads_children(void)
{
    if (child() == 0) {
        pthread_t thread;
        for (int i = 0; i < 4; i++)
            if (pthread_create(&thread, NULL, i % 2 ? forks_and_ends : forks_and_stays, NULL) != 0) fail("pthread_create");
        leaf();
    }
    return 5;
}

static void *stays(void *arg) { (void)arg; stay(); }

static uint32_t many_threads(void)
{
    if (orphan() == 0) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        pthread_t thread;
        for (int i = 0; i < 100; i++)
            if (pthread_create(&thread, &small, stays, NULL) != 0) fail("pthread_create");
        leaf();
    }
    return 1;
}

static void *execs(void *arg) { (void)arg; become(":leaf", "-"); }

/* Its leader dies, and yet the pid lives on as another program. */
static uint32_t exec_by_thread(void)
{
    if (orphan() == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, execs, NULL) != 0) fail("pthread_create");
        stay();
    }
    return 1;
}

static uint32_t never_reaps(void)
{
    if (child() == 0) {
        setsid();
        for (int i = 0; i < 50; i++) {
            pid_t pid = child();
            if (pid == 0) _exit(i);
            /* Dead before this arrives, and left so. */
            siginfo_t info;
            if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0) fail("waitid");
        }
        if (child() == 0) leaf();
        leaf();
    }
    return 2;
}

/* A thousand children, at most 50 at a time, with the exit codes i % 100. */
static uint32_t short_lived(void)
{
    if (child() == 0) {
        for (int i = 0, alive = 0; i < 1000; i++) {
            if (alive++ == 50) { wait(NULL); alive--; }
            if (child() == 0) _exit(i % 100);
        }
        while (wait(NULL) > 0) continue;
        leaf();
    }
    return 1;
}

static void wait_for_stop(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, WUNTRACED | __WALL) != pid || !WIFSTOPPED(status)) fail("waiting for a tracee's stop");
}

static uint32_t trace_stopped(void)
{
    if (orphan() == 0) {
        pid_t pid = child();
        if (pid == 0) {
            if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) fail("ptrace(TRACEME)");
            kill(getpid(), SIGSTOP);
            stay();
        }
        wait_for_stop(pid);
        arrive();
        leaf();
    }
    return 2;
}

/* It stops once more on its way out, and then only its tracer can let it go. */
static uint32_t trace_exit(void)
{
    if (orphan() == 0) {
        pid_t pid = child();
        if (pid == 0) leaf();
        if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT) != 0) fail("ptrace(SEIZE)");
        ignore(SIGTERM);
        leaf();
    }
    return 2;
}

const struct named families[] = {
    {"plain", plain},
    {"shell-job", shell_job},
    {"shell-monitor", shell_monitor},
    {"shell-orphan", shell_orphan},
    {"nohup", nohup},
    {"setsid", new_session},
    {"daemon", daemon_twice},
    {"many-daemons", many_daemons},
    {"deep", deep},
    {"subreaper", subreaper},
    {"clone-parent", clone_parent},
    {"vfork", vfork_without_exec},
    {"no-exit-signal", no_exit_signal},
    {"shared-memory", shared_memory},
    {"dead-leader", dead_leader},
    {"dead-leader-children", dead_leader_children},
    {"threads-children", threads_children},
    {"many-threads", many_threads},
    {"exec-by-thread", exec_by_thread},
    {"never-reaps", never_reaps},
    {"short-lived", short_lived},
    {"trace-stopped", trace_stopped},
    {"trace-exit", trace_exit},
    {NULL, NULL},
};
