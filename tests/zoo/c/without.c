/* A kernel that lacks something, for one program and all that it starts: a filter of system calls. */
#include "zoo.h"
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
/* Goes on with the next two instructions if what was loaded is this, else beyond them. */
#define IF(value, beyond) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (beyond))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))

/* As before Linux 5.3. */
static struct sock_filter clone3_unknown[] = {
    LOAD(nr), IF(SYS_clone3, 1), RETURN(SECCOMP_RET_ERRNO | ENOSYS), RETURN(SECCOMP_RET_ALLOW),
};
/* As in containers whose own filter has an older list. */
static struct sock_filter clone3_refused[] = {
    LOAD(nr), IF(SYS_clone3, 1), RETURN(SECCOMP_RET_ERRNO | EPERM), RETURN(SECCOMP_RET_ALLOW),
};
/* A proc connector that takes every order and never says anything, as in a namespace: no socket gets into a netlink group,
 * and none is told so. Only a netlink address has this length. */
static struct sock_filter connector[] = {
    LOAD(nr), IF(SYS_bind, 3), LOAD(args[2]), IF(sizeof(struct sockaddr_nl), 1), RETURN(SECCOMP_RET_ERRNO | 0),
    RETURN(SECCOMP_RET_ALLOW),
};

/* As before Linux 5.13, or without landlock among the security modules. */
static struct sock_filter landlock[] = {
    LOAD(nr), IF(444 /* landlock_create_ruleset */, 1), RETURN(SECCOMP_RET_ERRNO | ENOSYS), RETURN(SECCOMP_RET_ALLOW),
};

static const struct lack {
    const char *name;
    struct sock_fprog filter;
} lacks[] = {
    {"clone3-unknown", {COUNT(clone3_unknown), clone3_unknown}},
    {"clone3-refused", {COUNT(clone3_refused), clone3_refused}},
    {"connector", {COUNT(connector), connector}},
    {"landlock", {COUNT(landlock), landlock}},
};

void without(const char *what, char **argv)
{
    for (size_t i = 0; i < COUNT(lacks); i++) {
        if (strcmp(lacks[i].name, what) != 0) continue;
        /* Whoever is not root has to promise to stay that. */
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &lacks[i].filter) != 0 &&
            (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
             prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &lacks[i].filter) != 0)) {
            perror("zoo: a filter of system calls");
            return;
        }
        execv(argv[0], argv);
        perror(argv[0]);
        return;
    }
    fprintf(stderr, "zoo: nothing is without %s\n", what);
}
