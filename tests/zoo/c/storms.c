/* Members that do not stand still. Each is bounded: by time (`storming`), and in number by how it is made or a counter. */
#include "zoo.h"
#include <sys/time.h>

/* Each hop is a new process, in a new session, of a new exec. The last stays. */
static void stage_hop(const char *arg)
{
    if (strcmp(arg, "first") == 0) arrive();
    while (hopping()) {
        pid_t pid = fork();
        if (pid > 0) _exit(0);
        if (pid == 0) {
            setsid();
            become(":hop", "next");
        }
    }
    stay();
}

static uint32_t exec_storms(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (orphan() == 0) become(":hop", "first");
    return count;
}

static uint32_t storm(void) { return exec_storms(1); }
static uint32_t storms_16(void) { return exec_storms(16); }

/* Hops without exec, as fast as it can or with some work in between. */
static uint32_t fork_storms(uint32_t count, uint64_t work)
{
    for (uint32_t i = 0; i < count; i++)
        if (orphan() == 0) {
            arrive();
            while (hopping()) {
                for (volatile uint64_t left = work; left > 0; left--) continue;
                pid_t pid = fork();
                if (pid > 0) _exit(0);
                if (pid == 0) { bound(); setsid(); }
            }
            stay();
        }
    return count;
}

static uint32_t fork_storm(void) { return fork_storms(1, 0); }
static uint32_t fork_storms_8(void) { return fork_storms(8, 500000); }

/* Two hop, and leave daemons behind them: 150 in all. */
static uint32_t leaving_storm(void)
{
    for (int i = 0; i < 2; i++)
        if (orphan() == 0) {
            arrive();
            while (hopping()) {
                pid_t pid = fork();
                if (pid == 0) { bound(); setsid(); continue; }
                if (atomic_fetch_add(&shared->counter, 1) < 150) stay();
                _exit(0);
            }
            stay();
        }
    return 2;
}

static uint32_t fork_bomb(void)
{
    if (child() == 0) {
        for (int depth = 0; depth < 6; depth++) {
            /* Both sides go on: 2^6 - 1 children of the first. */
            child();
        }
        leaf();
    }
    return 64;
}

/* One program, again and again, in one process. */
static void stage_again(const char *arg)
{
    if (strcmp(arg, "first") == 0) arrive();
    if (storming()) become(":again", "next");
}

static uint32_t exec_loop(void)
{
    for (int i = 0; i < 4; i++)
        if (orphan() == 0) become(":again", "first");
    return 4;
}

static _Noreturn void partner(uint32_t me)
{
    uint32_t other;
begin:
    setsid();
    ignore(SIGTERM);
    ignore(SIGHUP);
    other = 1 - me;
    set(&shared->slot[me], (uint32_t)getpid());
    arrive();
    for (;;) {
        await_change(&shared->slot[other], 0);
        int fd = pidfd_open((pid_t)atomic_load(&shared->slot[other]));
        if (fd >= 0) {
            struct pollfd end = {.fd = fd, .events = POLLIN};
            while (poll(&end, 1, -1) < 0 && errno == EINTR) continue;
            close(fd);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        if (!storming() || atomic_fetch_add(&shared->counter, 1) >= 500) stay();
        atomic_store(&shared->slot[other], 0);
        if (child() == 0) {
            me = other;
            goto begin;
        }
    }
}

/* Each starts the other again. */
static uint32_t pair(void)
{
    for (uint32_t i = 0; i < 2; i++)
        if (orphan() == 0) partner(i);
    return 2;
}

static void forks_on_alarm(int sig)
{
    (void)sig;
    if (atomic_fetch_add(&shared->counter, 1) < 150 && child() == 0) {
        setsid();
        ignore(SIGALRM);
        stay();
    }
}

/* A timer brings another child every 5 ms, 150 in all. */
static uint32_t late_forker(void)
{
    if (orphan() == 0) {
        handle(SIGALRM, forks_on_alarm);
        struct itimerval often = {{.tv_usec = 5000}, {.tv_usec = 5000}};
        setitimer(ITIMER_REAL, &often, NULL);
        leaf();
    }
    return 1;
}

static void forks_on_signal(int sig)
{
    (void)sig;
    if (atomic_fetch_add(&shared->counter, 1) < 100 && child() == 0) setsid();
}

/* A polite end makes it more: its handler forks, in the child too. */
static uint32_t forks_on_term(void)
{
    if (orphan() == 0) {
        handle(SIGTERM, forks_on_signal);
        leaf();
    }
    return 1;
}

static void replaces_the_dead(int sig)
{
    (void)sig;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        if (atomic_fetch_add(&shared->counter, 1) < 300 && child() == 0) { handle(SIGCHLD, SIG_DFL); signal(SIGTERM, SIG_DFL); stay(); }
}

static uint32_t forks_on_child(void)
{
    if (orphan() == 0) {
        ignore(SIGTERM);
        handle(SIGCHLD, replaces_the_dead);
        for (int i = 0; i < 3; i++)
            if (child() == 0) { handle(SIGCHLD, SIG_DFL); signal(SIGTERM, SIG_DFL); leaf(); }
        leaf();
    }
    return 4;
}

/* Each knows of its parent's death, and forks for it. */
static uint32_t parent_death_signal(void)
{
    if (orphan() == 0) {
        handle(SIGUSR1, forks_on_signal);
        for (int i = 0; i < 5; i++) {
            if (child() != 0) leaf();
            prctl(PR_SET_PDEATHSIG, SIGUSR1);
        }
        leaf();
    }
    return 6;
}

/* Fills the agent's standard output for as long as it can. */
static uint32_t flood(void)
{
    for (int i = 0; i < 2; i++)
        if (orphan() == 0) {
            char line[120];
            memset(line, '.', sizeof line);
            line[sizeof line - 1] = '\n';
            arrive();
            await_change(&shared->spoken, 0);
            while (storming() && write(1, line, sizeof line) > 0) continue;
            stay();
        }
    return 2;
}

const struct stage storm_stages[] = {{":hop", stage_hop}, {":again", stage_again}, {NULL, NULL}};
const struct named storms[] = {
    {"storm", storm},
    {"storms-16", storms_16},
    {"fork-storm", fork_storm},
    {"fork-storms-8", fork_storms_8},
    {"leaving-storm", leaving_storm},
    {"fork-bomb", fork_bomb},
    {"exec-loop", exec_loop},
    {"pair", pair},
    {"late-forker", late_forker},
    {"forks-on-term", forks_on_term},
    {"forks-on-child", forks_on_child},
    {"parent-death-signal", parent_death_signal},
    {"flood", flood},
    {NULL, NULL},
};
