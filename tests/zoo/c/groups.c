/* Members that move between control groups. Their groups are called after the run's folder: the runner removes them. */
#include "zoo.h"

static char group[4096];

/* The mount point of a hierarchy: of cgroup 2, or of version 1 with this controller. */
static bool mount_of(const char *controller, char *point, size_t size)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[4096], path[2048], type[64], options[512];
    bool found = false;
    while (mounts && !found && fgets(line, sizeof line, mounts)) {
        char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %*s %2047s", path) != 1) continue;
        if (sscanf(tail, " - %63s %*s %511s", type, options) != 2) continue;
        found = controller ? strcmp(type, "cgroup") == 0 && strstr(options, controller) : strcmp(type, "cgroup2") == 0;
    }
    if (mounts) fclose(mounts);
    if (found) snprintf(point, size, "%s", path);
    return found;
}

/* Makes a group below `parent`. */
static void make_group(const char *parent)
{
    const char *name = strrchr(dir, '/');
    if (snprintf(group, sizeof group, "%s%s", parent, name) >= (int)sizeof group) fail("a group's path");
    if (mkdir(group, 0755) != 0) unavailable("making a control group");
}

static const char *of_group(const char *file)
{
    static char path[5000];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return path;
}

/* The path of this process's own group in version 2. */
static void own_group(char *path, size_t size)
{
    char point[2048], line[2048] = "";
    if (!mount_of(NULL, point, sizeof point)) { errno = ENOENT; unavailable("cgroup version 2"); }
    FILE *groups = fopen("/proc/self/cgroup", "re");
    while (groups && fgets(line, sizeof line, groups) && strncmp(line, "0::", 3) != 0) continue;
    if (groups) fclose(groups);
    line[strcspn(line, "\n")] = 0;
    const char *below = strncmp(line, "0::", 3) == 0 ? line + 3 : "";
    snprintf(path, size, "%s%s", point, strcmp(below, "/") == 0 ? "" : below);
}

/* Away from whatever group it was put into. */
static uint32_t leaves_its_group(void)
{
    char point[2048];
    if (!mount_of(NULL, point, sizeof point)) { errno = ENOENT; unavailable("cgroup version 2"); }
    make_group(point);
    if (orphan() == 0) {
        if (!try_write_file(of_group("cgroup.procs"), "0")) unavailable("leaving a control group");
        if (child() == 0) leaf();
        leaf();
    }
    return 2;
}

/* Two enter the group, which the agent then freezes and sees frozen. It stays outside itself. */
static uint32_t freeze(const char *procs, const char *file, const char *frozen, const char *where, const char *what)
{
    for (int i = 0; i < 2; i++)
        if (orphan() == 0) {
            if (!try_write_file(of_group(procs), "0")) unavailable("entering a control group");
            leaf();
        }
    await(2);
    if (!try_write_file(of_group(file), frozen)) unavailable("freezing a control group");
    for (;; pause_ms(1)) {
        char text[256] = "";
        int fd = open(of_group(where), O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, text, sizeof text - 1) < 0) fail("reading the state of a control group");
        close(fd);
        if (strstr(text, what)) return 2;
    }
}

static uint32_t frozen_group(void)
{
    char parent[4096];
    own_group(parent, sizeof parent);
    make_group(parent);
    return freeze("cgroup.procs", "cgroup.freeze", "1", "cgroup.events", "frozen 1");
}

/* Here SIGKILL waits for the thaw. */
static uint32_t frozen_group_v1(void)
{
    char point[2048];
    if (!mount_of("freezer", point, sizeof point)) { errno = ENOENT; unavailable("the freezer of cgroup version 1"); }
    make_group(point);
    return freeze("cgroup.procs", "freezer.state", "FROZEN", "freezer.state", "FROZEN");
}

const struct named groups[] = {
    {"leaves-its-group", leaves_its_group},
    {"frozen-group", frozen_group},
    {"frozen-group-v1", frozen_group_v1},
    {NULL, NULL},
};
