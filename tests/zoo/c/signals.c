/* Members that do something with signals, or to their supervisor. */
#include "zoo.h"
#include <sys/ioctl.h>
#include <termios.h>

static uint32_t ignores_all(void)
{
    if (orphan() == 0) {
        for (int sig = 1; sig < NSIG; sig++) ignore(sig);
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        leaf();
    }
    return 1;
}

/* Their parent arrives for each, once it has seen it stop. */
static uint32_t stopped(void)
{
    for (int i = 0; i < 2; i++) {
        int status;
        pid_t pid = child();
        if (pid == 0) {
            if (i == 1) setsid();
            ignore(SIGTERM);
            kill(getpid(), SIGSTOP);
            stay();
        }
        if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status)) fail("waiting for a stop");
        arrive();
    }
    return 2;
}

/* Each wakes the other every millisecond, and stops it in between. */
static uint32_t wakes_the_other(void)
{
    for (uint32_t me = 0; me < 2; me++)
        if (orphan() == 0) {
            ignore(SIGTERM);
            set(&shared->slot[me], (uint32_t)getpid());
            await_change(&shared->slot[1 - me], 0);
            int other = pidfd_open((pid_t)atomic_load(&shared->slot[1 - me]));
            if (other < 0) fail("pidfd_open of the other");
            arrive();
            while (storming()) {
                if (me == 0) pidfd_signal(other, SIGSTOP);
                pidfd_signal(other, SIGCONT);
                pause_ms(1);
            }
            stay();
        }
    return 2;
}

/* A pidfd of the agent's parent, which is the proxy; -1 where it cannot be named. */
static int supervisor(void)
{
    pid_t pid = getppid();
    return pid > 1 ? pidfd_open(pid) : -1;
}

/* outcome: 2 if the proxy is none the worse for it. If it is dead, so is this before long. */
static uint32_t kills_its_proxy(void)
{
    int proxy = supervisor();
    if (orphan() == 0) leaf();
    if (orphan() == 0) {
        arrive();
        await_change(&shared->spoken, 0);
        struct pollfd end = {.fd = proxy, .events = POLLIN};
        if (proxy < 0 || pidfd_signal(proxy, SIGKILL) != 0 || poll(&end, 1, 1000) != 1) set(&shared->outcome, 2);
        stay();
    }
    return 2;
}

/* outcome: 1 the signal was sent, 2 it was refused. */
static uint32_t stops_its_proxy(void)
{
    int proxy = supervisor();
    if (orphan() == 0) leaf();
    if (orphan() == 0) {
        ignore(SIGTERM);
        arrive();
        await_change(&shared->spoken, 0);
        set(&shared->outcome, proxy >= 0 && pidfd_signal(proxy, SIGSTOP) == 0 ? 1 : 2);
        stay();
    }
    return 2;
}

/* A session with a terminal of its own: foreground, background, and a job that waits for the terminal. */
static uint32_t terminal(void)
{
    if (orphan() == 0) {
        setsid();
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) unavailable("posix_openpt");
        char *name = ptsname(master);
        int slave = name ? open(name, O_RDWR) : -1;
        if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) != 0) unavailable("opening a terminal");
        ignore(SIGHUP);
        ignore(SIGTTOU);
        pid_t front = child();
        if (front == 0) { setpgid(0, 0); leaf(); }
        setpgid(front, front);
        if (tcsetpgrp(slave, front) != 0) fail("tcsetpgrp");
        pid_t back = child();
        if (back == 0) {
            setpgid(0, 0);
            char byte;
            /* SIGTTIN stops it. */
            for (;;) if (read(slave, &byte, 1) <= 0) pause_ms(10);
        }
        int status;
        if (waitpid(back, &status, WUNTRACED) != back || !WIFSTOPPED(status)) fail("waiting for SIGTTIN");
        arrive();
        leaf();
    }
    return 3;
}

/* Keeps the agent's streams open, and says something now and then. */
static uint32_t holds_the_streams(void)
{
    if (orphan() == 0) {
        ignore(SIGPIPE);
        ignore(SIGTERM);
        arrive();
        await_change(&shared->spoken, 0);
        while (storming()) {
            if (write(1, "still here\n", 11) < 0) pause_ms(10);
            pause_ms(10);
        }
        stay();
    }
    return 1;
}

const struct named signals[] = {
    {"ignores-all", ignores_all},
    {"stopped", stopped},
    {"wakes-the-other", wakes_the_other},
    {"kills-its-proxy", kills_its_proxy},
    {"stops-its-proxy", stops_its_proxy},
    {"terminal", terminal},
    {"holds-the-streams", holds_the_streams},
    {NULL, NULL},
};
