/* Members in namespaces of their own. An ordinary user takes a user namespace with each. */
#include "zoo.h"
#include <sys/mount.h>

static unsigned long user_too(void) { return geteuid() == 0 ? 0 : CLONE_NEWUSER; }

/* In a new user namespace: keeps its ids, so that it may make another one. `uid` and `gid` are those outside. */
static void map_self(uid_t uid, gid_t gid)
{
    char map[64];
    try_write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    if (!try_write_file("/proc/self/uid_map", map)) fail("/proc/self/uid_map");
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    if (!try_write_file("/proc/self/gid_map", map)) fail("/proc/self/gid_map");
}

/* Two daemons below the init of a namespace. They become its children, and nobody else's. */
static _Noreturn void init_with_daemons(void)
{
    for (int i = 0; i < 2; i++)
        if (orphan() == 0) leaf();
    leaf();
}

static void own_proc(void)
{
    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
    /* Refused where parts of the machine's /proc are covered; the member is one without it too. */
    if (mount("proc", "/proc", "proc", 0, NULL) != 0) errno = 0;
}

static uint32_t pid_namespace_with(unsigned long flags)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    pid_t pid = bare_clone(CLONE_NEWPID | CLONE_NEWNS | flags | SIGCHLD);
    if (pid < 0) unavailable("clone(CLONE_NEWPID)");
    if (pid == 0) {
        if (flags & CLONE_NEWUSER) map_self(uid, gid);
        own_proc();
        init_with_daemons();
    }
    return 3;
}

static uint32_t pid_namespace(void) { return pid_namespace_with(0); }
static uint32_t user_pid_namespace(void) { return pid_namespace_with(CLONE_NEWUSER); }

static uint32_t nested_pid_namespaces(void)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    pid_t pid = bare_clone(CLONE_NEWPID | CLONE_NEWUSER | SIGCHLD);
    if (pid < 0) unavailable("clone(CLONE_NEWUSER | CLONE_NEWPID)");
    if (pid == 0) {
        map_self(uid, gid);
        for (int depth = 0; depth < 3; depth++) {
            pid = bare_clone(CLONE_NEWPID | CLONE_NEWUSER | SIGCHLD);
            if (pid < 0) fail("a nested namespace");
            if (pid > 0) leaf();
            map_self(uid, gid);
        }
        if (orphan() == 0) leaf();
        leaf();
    }
    return 5;
}

/* A child that is born into the namespace of a stranger to its parent. */
static uint32_t enters_a_namespace(void)
{
    pid_t init = bare_clone(CLONE_NEWPID | user_too() | SIGCHLD);
    if (init < 0) unavailable("clone(CLONE_NEWPID)");
    if (init == 0) leaf();
    if (orphan() == 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/user", init);
        if (user_too()) {
            int user = open(path, O_RDONLY | O_CLOEXEC);
            if (user < 0 || setns(user, CLONE_NEWUSER) != 0) unavailable("setns(CLONE_NEWUSER)");
        }
        snprintf(path, sizeof path, "/proc/%d/ns/pid", init);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, CLONE_NEWPID) != 0) unavailable("setns(CLONE_NEWPID)");
        if (child() == 0) { setsid(); leaf(); }
        leaf();
    }
    return 3;
}

/* Nothing to be seen in its /proc. */
static uint32_t hidden_proc(void)
{
    if (orphan() == 0) {
        if (unshare((int)(CLONE_NEWNS | user_too())) != 0) unavailable("unshare(CLONE_NEWNS)");
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
        if (mount("none", "/proc", "tmpfs", 0, NULL) != 0) unavailable("covering /proc");
        if (child() == 0) leaf();
        leaf();
    }
    return 2;
}

static uint32_t every_namespace(void)
{
    if (orphan() == 0) {
        unsigned long all = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWPID;
        if (unshare((int)(all | user_too())) != 0) unavailable("unshare of every namespace");
        if (child() == 0) init_with_daemons();
        leaf();
    }
    return 4;
}

const struct named namespaces[] = {
    {"pid-namespace", pid_namespace},
    {"user-pid-namespace", user_pid_namespace},
    {"nested-pid-namespaces", nested_pid_namespaces},
    {"enters-a-namespace", enters_a_namespace},
    {"hidden-proc", hidden_proc},
    {"every-namespace", every_namespace},
    {NULL, NULL},
};
