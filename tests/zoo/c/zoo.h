/* What all members share. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The first page of DIR/mark, mapped by every process of a run. The offsets of the first four are known to the runner.
 * What hops faster than /proc can be read is seen by `hops`, which each new process of a storm counts. */
struct shared {
    _Atomic uint32_t arrived; /* processes that are where their member wants them */
    _Atomic uint32_t outcome; /* what came of an attack; see each member */
    _Atomic uint32_t failed;  /* 1: it went wrong, 2: the machine does not offer it; `error` says what */
    _Atomic uint32_t hops;    /* processes that storms have started */
    _Atomic uint32_t spoken;  /* the agent has said that all have arrived */
    _Atomic uint64_t began;   /* CLOCK_MONOTONIC, nanoseconds */
    _Atomic uint32_t counter; /* of what a member has to bound */
    _Atomic uint32_t slot[4]; /* pids that a member's processes tell each other */
    char error[256];
};
extern struct shared *shared;

extern const char *exe;       /* DIR/zoo: the run's private copy of this program */
extern const char *dir;       /* DIR, absolute */
extern char **words;          /* argv */
extern int word_count;

/* Says what failed, and ends this process; the runner's test fails. */
_Noreturn void fail(const char *what);
/* Says that the machine does not offer it, and ends this process; the runner prints NOT RUN. */
_Noreturn void unavailable(const char *what);
/* Its SIGKILL timer: nothing lives beyond a minute from the run's start. For every new process. */
void bound(void);
/* fork; the child is bounded. */
pid_t child(void);
/* A bare clone that returns twice; the child is bounded. */
pid_t bare_clone(unsigned long flags);
/* This process is where its member wants it. */
void arrive(void);
/* Sleeps until so many have arrived. */
void await(uint32_t count);
/* Sleeps until the word is not `old`; ends this process if the run has failed. */
void await_change(_Atomic uint32_t *word, uint32_t old);
void set(_Atomic uint32_t *word, uint32_t value);
/* Arrives, and stays until it is killed. */
_Noreturn void leaf(void);
_Noreturn void stay(void);
/* Replaces this process by `zoo STAGE DIR ARG`. */
_Noreturn void become(const char *stage, const char *arg);
/* A child, orphaned and in a session of its own, returns; so does the caller. 0 in the orphan. */
pid_t orphan(void);
void pause_ms(long ms);
/* Whether a storm may go on, by time. */
bool storming(void);
/* Counts a hop, and says whether the storm may go on: by time, and by number, since every hop leaves a dead process to
 * whoever reaps, and the machine has only so many pids. */
bool hopping(void);
int pidfd_open(pid_t pid);
int pidfd_signal(int fd, int sig);
void ignore(int sig);
void handle(int sig, void (*handler)(int));
void write_file(const char *path, const char *text);
/* False, with errno, if it cannot be written. */
bool try_write_file(const char *path, const char *text);
/* Copies this program to a descriptor. */
void copy_self(int to);

/* A member starts what it is and returns how many arrivals that makes. It runs in the agent's own process. */
typedef uint32_t member(void);
struct named { const char *name; member *run; };
/* A stage is what a process of a member becomes by exec. */
struct stage { const char *name; void (*run)(const char *arg); };

extern const struct named families[], storms[], signals[], disguises[], namespaces[], groups[];
extern const struct stage storm_stages[], disguise_stages[];
/* Becomes the program argv[0], with these arguments, where the kernel lacks `what`; returns only if that cannot be. */
void without(const char *what, char **argv);
