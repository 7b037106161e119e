/* Programs that try to get away from whoever started them.
 *
 *   zoo MEMBER DIR stay|exit     as an agent: says `settled` once all its processes are there, and stays or exits
 *   zoo :members                 names all members
 *   zoo :bystander               dies of any signal; ends with its standard input
 *   zoo :without WHAT PROGRAM…   becomes PROGRAM, where the kernel lacks something; status 3 if that cannot be
 *
 * DIR holds `zoo`, a copy of this program that nothing else runs, and `mark`, a file of at least a page that each process
 * maps: by either a process is recognised whatever it does. Nothing here lives beyond a minute (a SIGKILL timer in every
 * process), no storm goes on for more than 15 s or starts more than 5000 processes, and no member has more than 200. */
#include "zoo.h"
#include <linux/futex.h>
#include <sys/sendfile.h>

enum { LIFETIME_S = 60, STORM_S = 15, MAX_HOPS = 5000 };

struct shared *shared;
const char *exe, *dir;
char **words;
int word_count;
/* Whether this is the process that was started as an agent: it alone says what happens. */
static bool is_agent;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    /* A failure elsewhere wakes another word: look at it now and then. */
    struct timespec at_most = {.tv_nsec = 100000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &at_most, NULL, 0);
}

static void say_failure(void)
{
    uint32_t failed = atomic_load(&shared->failed);
    if (is_agent && (failed == 1 || failed == 2))
        dprintf(1, "%s: %s\n", failed == 1 ? "failed" : "unavailable", shared->error);
}

static void give_up(uint32_t kind, const char *what)
{
    uint32_t none = 0;
    int error = errno;
    if (atomic_compare_exchange_strong(&shared->failed, &none, 3)) {
        snprintf(shared->error, sizeof shared->error, "%s: %s", what, strerror(error));
        atomic_store(&shared->failed, kind);
        futex_wake(&shared->arrived);
    }
    say_failure();
    _exit(3);
}

void fail(const char *what) { give_up(1, what); __builtin_unreachable(); }
void unavailable(const char *what) { give_up(2, what); __builtin_unreachable(); }

void bound(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    uint64_t end = atomic_load(&shared->began) + LIFETIME_S * 1000000000ull;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(end / 1000000000u), .tv_nsec = (long)(end % 1000000000u)}};
    int timer;
    if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) != 0) fail("timer_create");
    if (syscall(SYS_timer_settime, timer, TIMER_ABSTIME, &at, NULL) != 0) fail("timer_settime");
}

bool storming(void)
{
    /* Where nobody reaps them (a stopped or wedged subreaper) dead hops pile up: they must not take the machine's pids. */
    if (atomic_fetch_add(&shared->hops, 1) > 12000) return false;
    return now_ns() < atomic_load(&shared->began) + STORM_S * 1000000000ull; }
bool hopping(void) { return atomic_fetch_add(&shared->hops, 1) < MAX_HOPS && storming(); }

pid_t child(void)
{
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        is_agent = false;
        bound();
    }
    return pid;
}

pid_t bare_clone(unsigned long flags)
{
    pid_t pid = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (pid == 0) {
        is_agent = false;
        bound();
    }
    return pid;
}

void set(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store(word, value);
    futex_wake(word);
}

void arrive(void)
{
    atomic_fetch_add(&shared->arrived, 1);
    futex_wake(&shared->arrived);
}

void await_change(_Atomic uint32_t *word, uint32_t old)
{
    while (atomic_load(word) == old) {
        if (atomic_load(&shared->failed)) _exit(3);
        futex_wait(word, old);
    }
}

void await(uint32_t count)
{
    uint32_t arrived;
    while ((arrived = atomic_load(&shared->arrived)) < count) {
        uint32_t failed = atomic_load(&shared->failed);
        if (failed == 1 || failed == 2) {
            say_failure();
            _exit(3);
        }
        futex_wait(&shared->arrived, arrived);
    }
}

void stay(void) { for (;;) pause(); }
void leaf(void) { arrive(); stay(); }

void become(const char *stage, const char *arg)
{
    execl(exe, exe, stage, dir, arg, (char *)NULL);
    fail("exec");
}

pid_t orphan(void)
{
    pid_t pid = child();
    if (pid == 0) {
        if (setsid() < 0) fail("setsid");
        if (child() != 0) _exit(0);
        return 0;
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    return pid;
}

void pause_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int pidfd_open(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }
int pidfd_signal(int fd, int sig) { return (int)syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0); }
void ignore(int sig) { signal(sig, SIG_IGN); }

void handle(int sig, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(sig, &action, NULL);
}

bool try_write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int error = errno;
    close(fd);
    errno = error;
    return written;
}

void write_file(const char *path, const char *text)
{
    if (!try_write_file(path, text)) fail(path);
}

void copy_self(int to)
{
    int from = open(exe, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (from < 0 || fstat(from, &stat) != 0) fail("opening this program");
    for (off_t left = stat.st_size; left > 0;) {
        ssize_t sent = sendfile(to, from, NULL, (size_t)left);
        if (sent <= 0) fail("copying this program");
        left -= sent;
    }
    close(from);
}

static void map_mark(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/mark", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || shared == MAP_FAILED) {
        perror(path);
        exit(3);
    }
    close(fd);
    uint64_t zero = 0;
    atomic_compare_exchange_strong(&shared->began, &zero, now_ns());
}

static void stage_leaf(const char *arg) { (void)arg; leaf(); }

/* Ends once so many have arrived: a shell waits for it. */
static void stage_herald(const char *arg)
{
    is_agent = true;
    await((uint32_t)atoi(arg));
    _exit(0);
}

static const struct stage stages[] = {{":leaf", stage_leaf}, {":herald", stage_herald}, {NULL, NULL}};
static const struct named *const houses[] = {families, storms, signals, disguises, namespaces, groups};
static const struct stage *const stage_lists[] = {stages, storm_stages, disguise_stages};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static _Noreturn void bystander(void)
{
    for (int sig = 1; sig < NSIG; sig++) handle(sig, _exit);
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    _exit(0);
}

int main(int argc, char **argv)
{
    words = argv;
    word_count = argc;
    if (argc == 2 && strcmp(argv[1], ":bystander") == 0) bystander();
    if (argc == 2 && strcmp(argv[1], ":members") == 0) {
        for (size_t i = 0; i < COUNT(houses); i++)
            for (const struct named *named = houses[i]; named->name; named++) puts(named->name);
        return 0;
    }
    if (argc > 3 && strcmp(argv[1], ":without") == 0) {
        without(argv[2], argv + 3);
        return 3;
    }
    if (argc != 4) {
        fprintf(stderr, "usage: zoo MEMBER DIR stay|exit\n");
        return 2;
    }
    dir = strdup(argv[2]);
    char path[4096];
    snprintf(path, sizeof path, "%s/zoo", dir);
    exe = strdup(path);
    map_mark();
    bound();
    for (size_t i = 0; i < COUNT(stage_lists); i++)
        for (const struct stage *stage = stage_lists[i]; stage->name; stage++)
            if (strcmp(stage->name, argv[1]) == 0) {
                stage->run(argv[3]);
                return 0;
            }
    for (size_t i = 0; i < COUNT(houses); i++)
        for (const struct named *named = houses[i]; named->name; named++)
            if (strcmp(named->name, argv[1]) == 0) {
                is_agent = true;
                await(named->run());
                dprintf(1, "settled\n");
                set(&shared->spoken, 1);
                if (strcmp(argv[3], "exit") == 0) _exit(0);
                stay();
            }
    fprintf(stderr, "zoo: no member %s\n", argv[1]);
    return 2;
}
