#include "model/checkpoint/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* a mapped file in a list; entries are never freed, because the SIGBUS handler reads them in any
 * thread */
typedef struct entry {
    _Atomic uintptr_t begin;
    _Atomic size_t len;
    char *path;
    struct entry *next;
} entry;

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(entry *) list;
static struct sigaction earlier_action;
static bool on_terminal;

static size_t append(char *line, size_t size, size_t n, const char *text)
{
    while (*text && n < size) {
        const char c = *text++;
        line[n++] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
    }
    return n;
}

/* Handles SIGBUS. Ends the program with a message if a mapped file has shrunk. */
static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    static atomic_flag first = ATOMIC_FLAG_INIT;
    const uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    const entry *e = atomic_load(&list);
    while (e && at - atomic_load(&e->begin) >= atomic_load(&e->len))
        e = e->next;
    /* The address is in no mapped file: restores the old handler, which receives SIGBUS when the
     * processor repeats the access. */
    if (!e) {
        (void)sigaction(signal, &earlier_action, NULL);
        return;
    }
    if (atomic_flag_test_and_set(&first))
        for (;;)
            (void)pause();
    char line[4608];
    const size_t size = sizeof line - 1;
    size_t n = 0;
    if (on_terminal)
        line[n++] = '\n';
    n = append(line, size, n, program_invocation_short_name);
    n = append(line, size, n, ": '");
    n = append(line, size, n, e->path);
    n = append(
        line, size, n,
        "' can no longer be read: the file became shorter during the run, or its disk failed; "
        "restore the file and run the command again, with --resume if the program has it");
    line[n++] = '\n';
    const ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; /* a failure of write cannot be reported */
    _exit(1);
}

/* Installs the SIGBUS handler. The caller must hold list_lock. */
static int install_handler(kvd_err *err)
{
    struct sigaction now, action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    (void)sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &now))
        return kvd_fail_errno(err, "cannot read the action of SIGBUS");
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_bus_error)
        return 0;
    earlier_action = now;
    on_terminal = isatty(STDERR_FILENO) == 1;
    return sigaction(SIGBUS, &action, NULL)
               ? kvd_fail_errno(err, "cannot install a handler of SIGBUS")
               : 0;
}

static int list_map(const void *bytes, size_t len, const char *path, kvd_err *err)
{
    int status = -1;
    char *const copy = strdup(path);
    (void)pthread_mutex_lock(&list_lock);
    if (install_handler(err)) {
        free(copy);
        goto done;
    }
    entry *e = atomic_load(&list);
    while (e && atomic_load(&e->len))
        e = e->next;
    if (!e && copy && (e = calloc(1, sizeof *e))) {
        e->next = atomic_load(&list);
        atomic_store(&list, e);
    }
    if (!copy || !e) {
        free(copy);
        kvd_no_memory(err, "a map", sizeof *e);
        goto done;
    }
    free(e->path);
    e->path = copy;
    atomic_store(&e->begin, (uintptr_t)bytes);
    atomic_store(&e->len, len);
    status = 0;
done:
    (void)pthread_mutex_unlock(&list_lock);
    return status;
}

static void unlist_map(const void *bytes)
{
    (void)pthread_mutex_lock(&list_lock);
    for (entry *e = atomic_load(&list); e; e = e->next)
        if (atomic_load(&e->len) && atomic_load(&e->begin) == (uintptr_t)bytes)
            atomic_store(&e->len, 0);
    (void)pthread_mutex_unlock(&list_lock);
}

int kvd_filemap_load(kvd_filemap *m, const char *path, kvd_err *err)
{
    int status = -1;
    struct stat st;
    *m = (kvd_filemap){.bytes = "", .len = 0};
    /* O_NONBLOCK avoids waiting if `path` is a pipe without a writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    if (fstat(fd, &st)) {
        kvd_fail_errno(err, "cannot stat '%s'", path);
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        kvd_fail(err, "'%s' is %s, not a regular file", path,
                 S_ISDIR(st.st_mode) ? "a folder" : "special");
        goto done;
    }
    if ((uintmax_t)st.st_size > SIZE_MAX) {
        kvd_fail(err, "'%s': %jd bytes do not fit in the address space", path,
                 (intmax_t)st.st_size);
        goto done;
    }
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            kvd_fail_errno(err, "cannot map '%s' (%jd bytes)", path, (intmax_t)st.st_size);
            goto done;
        }
        if (list_map(p, (size_t)st.st_size, path, err)) {
            (void)munmap(p, (size_t)st.st_size);
            goto done;
        }
        m->bytes = p;
        m->len = (size_t)st.st_size;
        (void)madvise(p, m->len, MADV_SEQUENTIAL);
    }
    status = 0;
done:
    (void)close(fd);
    return status;
}

void kvd_filemap_release(kvd_filemap *m)
{
    if (m->len > 0) {
        unlist_map(m->bytes);
        (void)munmap((void *)(uintptr_t)m->bytes, m->len);
    }
    *m = (kvd_filemap){0};
}
