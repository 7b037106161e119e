/* Members that look like somebody else. */
#include "zoo.h"
#include <grp.h>

/* Overwrites the command line in place. */
static void rename_to(const char *comm, const char *line, size_t length)
{
    char *first = words[0], *last = words[word_count - 1];
    size_t room = (size_t)(last - first) + strlen(last);
    memset(first, 0, room);
    memcpy(first, line, length < room ? length : room);
    prctl(PR_SET_NAME, comm);
}

static void stage_disguised(const char *arg)
{
    (void)arg;
    rename_to("kworker/0:1", "[kworker/0:1]", 13);
    leaf();
}

/* No descriptor, no environment, no directory, no name. */
static uint32_t disguised(void)
{
    if (orphan() == 0) {
        if (chdir("/") != 0) fail("chdir");
        umask(0);
        if (syscall(SYS_close_range, 0, ~0u, 0) != 0) fail("close_range");
        char *argv[] = {(char *)exe, ":disguised", (char *)dir, "-", NULL}, *env[] = {NULL};
        execve(exe, argv, env);
        fail("exec");
    }
    return 1;
}

static void stage_mimic(const char *arg)
{
    char path[64], comm[64] = "", line[1024] = "";
    snprintf(path, sizeof path, "/proc/%s/comm", arg);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, comm, sizeof comm - 1);
    if (length > 0) comm[length - 1] = 0;
    close(fd);
    snprintf(path, sizeof path, "/proc/%s/cmdline", arg);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    length = fd < 0 ? 0 : read(fd, line, sizeof line);
    close(fd);
    rename_to(comm, line, length > 0 ? (size_t)length : 0);
    leaf();
}

/* Named as its proxy is, and in its process group if that can be had. */
static uint32_t mimic(void)
{
    pid_t proxy = getppid();
    if (child() == 0) {
        /* Refused today: the agent has a session of its own. */
        if (proxy > 0) setpgid(0, getpgid(proxy));
        char arg[16];
        snprintf(arg, sizeof arg, "%d", proxy);
        become(":mimic", arg);
    }
    return 1;
}

/* A name that breaks what parses /proc/PID/stat and /proc/PID/status carelessly. */
static uint32_t lying_name(void)
{
    if (orphan() == 0) {
        prctl(PR_SET_NAME, ") Z 1 1 1\n(0");
        if (child() == 0) { prctl(PR_SET_NAME, "x) (\tPPid: 1"); leaf(); }
        leaf();
    }
    return 2;
}

/* Runs a file that never had a name. */
static uint32_t memory_file(void)
{
    int fd = memfd_create("harmless", MFD_CLOEXEC);
    if (fd < 0) fail("memfd_create");
    copy_self(fd);
    if (orphan() == 0) {
        char *argv[] = {"harmless", ":leaf", (char *)dir, "-", NULL}, *env[] = {NULL};
        syscall(SYS_execveat, fd, "", argv, env, AT_EMPTY_PATH);
        unavailable("exec of a memory file");
    }
    return 1;
}

/* Runs a file that is gone. */
static uint32_t deleted_file(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/deleted", dir);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0755);
    if (fd < 0) fail(path);
    copy_self(fd);
    close(fd);
    if (orphan() == 0) {
        char *argv[] = {"sshd", ":leaf", (char *)dir, "-", NULL}, *env[] = {NULL};
        execve(path, argv, env);
        fail("exec of a copy");
    }
    await(1);
    unlink(path);
    return 1;
}

/* Its user may not look into it. */
static uint32_t undumpable(void)
{
    if (orphan() == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        leaf();
    }
    return 1;
}

/* A daemon that root started for somebody else. */
static uint32_t another_user(void)
{
    if (orphan() == 0) {
        if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0) unavailable("becoming another user");
        if (child() == 0) become(":leaf", "-");
        leaf();
    }
    return 2;
}

static uint32_t another_root(void)
{
    if (orphan() == 0) {
        if (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0) unavailable("unshare(CLONE_NEWUSER)");
        if (chroot(dir) != 0) unavailable("chroot");
        if (chdir("/") != 0) fail("chdir");
        if (child() == 0) leaf();
        leaf();
    }
    return 2;
}

const struct stage disguise_stages[] = {{":disguised", stage_disguised}, {":mimic", stage_mimic}, {NULL, NULL}};
const struct named disguises[] = {
    {"disguised", disguised},
    {"mimic", mimic},
    {"lying-name", lying_name},
    {"memory-file", memory_file},
    {"deleted-file", deleted_file},
    {"undumpable", undumpable},
    {"another-user", another_user},
    {"another-root", another_root},
    {NULL, NULL},
};
