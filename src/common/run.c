#include "common/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/blas.h"
#include "common/clock.h"
#include "common/files/h5.h"
#include "common/memory.h"
#include "common/utf8.h"
#include "common/version.h"

static volatile sig_atomic_t stop_asked;
static _Atomic double stop_asked_s;
static volatile sig_atomic_t reader_gone;
static atomic_int failing_status = 1;

/* Handles a signal that asks the program to stop. Ignores a second signal within 0.5 s, because the
 * command `timeout` sends two. */
static void on_stop(int sig)
{
    const double now = kvd_clock_s();
    if (!stop_asked) {
        stop_asked_s = now;
        stop_asked = 1;
    } else if (now - stop_asked_s >= 0.5) {
        (void)signal(sig, SIG_DFL);
        (void)raise(sig);
    }
}

static void on_closed_pipe(int sig)
{
    (void)sig;
    reader_gone = 1;
}

static bool needs_quotes(const char *s)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%^";
    return !*s || s[strspn(s, plain)];
}

/* Quotes arguments for a shell. In single quotes, a single quote is written '\''. */
char *kvd_run_quote(int argc, const char *const *argv, kvd_err *err)
{
    size_t size = 1;
    for (int i = 0; i < argc; i++)
        size += 4 * strlen(argv[i]) + 3;
    char *text = malloc(size), *p = text;
    if (!text) {
        (void)kvd_no_memory(err, "the command line", size);
        return NULL;
    }
    for (int i = 0; i < argc; i++) {
        if (i)
            *p++ = ' ';
        if (!needs_quotes(argv[i])) {
            p = stpcpy(p, argv[i]);
            continue;
        }
        *p++ = '\'';
        for (const char *s = argv[i]; *s; s++) {
            if (*s == '\'')
                p = stpcpy(p, "'\\''");
            else
                *p++ = *s;
        }
        *p++ = '\'';
    }
    *p = '\0';
    return text;
}

static int cores_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    const int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

static bool hang_up_ignored;

static void note_hang_up(void)
{
    struct sigaction now;
    hang_up_ignored = !sigaction(SIGHUP, NULL, &now) && now.sa_handler == SIG_IGN;
}

/* Records whether SIGHUP is ignored at program start, before constructors of libraries can change
 * this. */
__attribute__((section(".preinit_array"), used)) static void (*const at_start)(void) = note_hang_up;

/* Lets SIGINT, SIGTERM and SIGHUP request a stop, and SIGXFSZ and SIGPIPE make writes fail. */
static int install_signals(kvd_err *err)
{
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction pipe = {.sa_handler = on_closed_pipe, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&stop.sa_mask);
    sigemptyset(&pipe.sa_mask);
    sigemptyset(&ignore.sa_mask);
    if (sigaction(SIGINT, &stop, NULL) || sigaction(SIGTERM, &stop, NULL) ||
        sigaction(SIGHUP, hang_up_ignored ? &ignore : &stop, NULL) ||
        sigaction(SIGPIPE, &pipe, NULL) || sigaction(SIGXFSZ, &ignore, NULL))
        return kvd_fail_errno(err, "cannot install signal handlers");
    return 0;
}

int kvd_run_start(kvd_run *run, const char *program, int argc, char **argv, kvd_common_options *opt,
                  kvd_err *err)
{
    *run = (kvd_run){.program = program, .seed = opt->seed, .started = kvd_clock_s()};
    /* Without this call, HDF5's cleanup at exit would retry a failed flush without end. */
    (void)H5dont_atexit();
    if (H5open() < 0)
        return kvd_fail(err, "cannot start the HDF5 library");
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    stop_asked = 0;
    if (install_signals(err))
        return -1;
    const time_t t = time(NULL);
    struct tm utc;
    if (!gmtime_r(&t, &utc) ||
        !strftime(run->started_utc, sizeof run->started_utc, "%Y-%m-%dT%H:%M:%SZ", &utc))
        return kvd_fail(err, "cannot read the clock");
    if (opt->threads <= 0)
        opt->threads = cores_allowed();
    else if (opt->threads > kvd_blas_most_threads())
        fprintf(stderr, "%s: warning: OpenBLAS serves %d threads at most: %d are used, not %d\n",
                program, kvd_blas_most_threads(), kvd_blas_most_threads(), opt->threads);
    if (opt->threads > kvd_blas_most_threads())
        opt->threads = kvd_blas_most_threads();
    run->threads = kvd_blas_start(opt->threads, err);
    if (run->threads < 0)
        return -1;
    char limit[KVD_MEMORY_LIMIT_TEXT];
    if (run->threads < opt->threads && kvd_memory_limit(limit))
        fprintf(stderr, "%s: warning: %s leaves room for %d thread%s, not %d\n", program, limit,
                run->threads, run->threads == 1 ? "" : "s", opt->threads);
    opt->threads = run->threads;
    run->command_line = kvd_run_quote(argc, (const char *const *)argv, err);
    return run->command_line ? 0 : -1;
}

static void input_release(kvd_run_input *in)
{
    free(in->path);
    free(in->schema);
    free(in->made_by);
}

void kvd_run_release(kvd_run *run)
{
    for (int i = 0; i < run->n_inputs; i++)
        input_release(&run->inputs[i]);
    free(run->inputs);
    free(run->parameters);
    free(run->command_line);
    *run = (kvd_run){0};
}

double kvd_run_elapsed(const kvd_run *run)
{
    return kvd_clock_s() - run->started;
}

bool kvd_interrupted(void)
{
    return stop_asked != 0;
}

int kvd_fail_interrupted(kvd_err *err)
{
    return kvd_fail(err, "interrupted");
}

int kvd_in_kept(kvd_err *err, size_t n, const char *result, const char *path, bool resume)
{
    if (n)
        return kvd_in(err, "%zu %s%s in '%s', the same command continues", n, result,
                      n > 1 ? "s are" : " is", path);
    if (!kvd_interrupted() || (resume && !path))
        return -1;
    return resume ? kvd_in(err, "no %s is saved yet", result)
                  : kvd_in(err, "nothing is kept (--resume saves every %s)", result);
}

/* Adds the memory limit to the error message, because libraries report a lack of memory as other
 * errors. */
static void name_the_limit(kvd_err *err)
{
    char limit[KVD_MEMORY_LIMIT_TEXT];
    if (kvd_memory_was_short() && kvd_memory_limit(limit) && !strstr(err->msg, limit)) {
        const kvd_err said = *err;
        (void)kvd_fail(err, "%.400s; memory was almost used up, raise %s", said.msg, limit);
    }
}

int kvd_run_exit(const char *program, int status, kvd_err *err)
{
    if (status) {
        name_the_limit(err);
        fprintf(stderr, "%s: %s\n", program, err->msg);
    }
    const bool earlier = ferror(stdout) != 0;
    errno = reader_gone ? EPIPE : earlier ? EIO : 0;
    if (fflush(stdout) || earlier) {
        if (!status)
            fprintf(stderr, "%s: cannot write to standard output: %s\n", program, strerror(errno));
        status = -1;
    }
    return status ? atomic_load(&failing_status) : 0;
}

void kvd_run_fail_as_usage(void)
{
    atomic_store(&failing_status, 2);
}

enum { READ_BYTES = 1 << 20 };

FILE *kvd_run_open_input(const char *path, kvd_err *err)
{
    struct stat st;
    /* Opens with O_NONBLOCK, so that a FIFO without a writer does not block the program. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = NULL;
    if (fd < 0 || fstat(fd, &st))
        kvd_fail_errno(err, "cannot open '%s'", path);
    else if (!S_ISREG(st.st_mode))
        kvd_fail(err, "'%s' is %s, not a file", path,
                 S_ISDIR(st.st_mode) ? "a folder" : "a pipe or device");
    else if (!(f = fdopen(fd, "rb")))
        kvd_fail_errno(err, "cannot open '%s'", path);
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

static int hash_file(XXH3_state_t *state, const char *path, uint64_t *bytes, kvd_err *err)
{
    int rc = -1;
    unsigned char *buffer = malloc(READ_BYTES);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (!buffer) {
        kvd_no_memory(err, "reading", READ_BYTES);
        goto done;
    }
    if (fd < 0) {
        kvd_fail_errno(err, "cannot open '%s'", path);
        goto done;
    }
    for (;;) {
        const ssize_t n = read(fd, buffer, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            kvd_fail_errno(err, "cannot read '%s'", path);
            goto done;
        }
        if (n == 0)
            break;
        if (XXH3_128bits_update(state, buffer, (size_t)n) == XXH_ERROR) {
            kvd_fail(err, "cannot hash '%s'", path);
            goto done;
        }
        *bytes += (uint64_t)n;
        if (stop_asked) {
            kvd_fail_interrupted(err);
            goto done;
        }
    }
    rc = 0;
done:
    if (fd >= 0)
        close(fd);
    free(buffer);
    return rc;
}

/* Returns true for files to hash: neither hidden nor archives (.tar.xz). */
static int of_content(const struct dirent *e)
{
    static const char archive[] = ".tar.xz";
    const size_t n = strlen(e->d_name), end = sizeof archive - 1;
    return e->d_name[0] != '.' && (n < end || strcmp(e->d_name + n - end, archive) != 0);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Hashes the regular files of a folder in the order of names: name, zero byte, size and content.
 * Leaves out hidden files and archives. */
static int hash_folder(XXH3_state_t *state, const char *path, uint64_t *bytes, kvd_err *err)
{
    struct dirent **entry = NULL;
    int rc = -1;
    const int n = scandir(path, &entry, of_content, by_bytes);
    if (n < 0)
        return kvd_fail_errno(err, "cannot read the folder '%s'", path);
    for (int i = 0; i < n; i++) {
        char *name = NULL;
        struct stat st;
        if (asprintf(&name, "%s/%s", path, entry[i]->d_name) < 0) {
            kvd_no_memory(err, "a path", strlen(path));
            goto done;
        }
        int bad = 0;
        if (stat(name, &st)) {
            bad = kvd_fail_errno(err, "cannot open '%s'", name);
        } else if (S_ISREG(st.st_mode)) {
            unsigned char size[8];
            for (int b = 0; b < 8; b++)
                size[b] = (unsigned char)((uint64_t)st.st_size >> (8 * b));
            (void)XXH3_128bits_update(state, entry[i]->d_name, strlen(entry[i]->d_name) + 1);
            (void)XXH3_128bits_update(state, size, sizeof size);
            bad = hash_file(state, name, bytes, err);
        }
        free(name);
        if (bad)
            goto done;
    }
    rc = 0;
done:
    for (int i = 0; i < n; i++)
        free(entry[i]);
    free(entry);
    return rc;
}

bool kvd_corpus_hash_same(const char *a, const char *b)
{
    const size_t n = strcspn(a, "+");
    return n == strcspn(b, "+") && !strncmp(a, b, n);
}

bool kvd_corpus_hash_begins_differently(const char *a, const char *b)
{
    a = strchr(a, '+');
    b = strchr(b, '+');
    return a && b && strcmp(a, b);
}

bool kvd_corpus_hash_begins_alike(const char *a, const char *b)
{
    a = strchr(a, '+');
    b = strchr(b, '+');
    return a && b && !strcmp(a, b);
}

static void put_digest(XXH3_state_t *state, char hash[KVD_HASH_TEXT])
{
    const XXH128_hash_t h = XXH3_128bits_digest(state);
    (void)snprintf(hash, KVD_HASH_TEXT, "xxh3:%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
}

int kvd_run_hash_file(const char *path, char hash[KVD_HASH_TEXT], kvd_err *err)
{
    uint64_t bytes = 0;
    XXH3_state_t *const state = XXH3_createState();
    int status = !state || XXH3_128bits_reset(state) == XXH_ERROR
                     ? kvd_no_memory(err, "a hash", strlen(path))
                     : hash_file(state, path, &bytes, err);
    if (!status)
        put_digest(state, hash);
    XXH3_freeState(state);
    return status;
}

static int append_input(kvd_run *run, const kvd_run_input *in, kvd_err *err)
{
    kvd_run_input *more = realloc(run->inputs, ((size_t)run->n_inputs + 1) * sizeof *more);
    if (!more)
        return kvd_no_memory(err, "inputs", ((size_t)run->n_inputs + 1) * sizeof *more);
    run->inputs = more;
    run->inputs[run->n_inputs++] = *in;
    return 0;
}

static int add_path(kvd_run *run, const char *path, bool folders, kvd_err *err)
{
    int rc = -1;
    kvd_run_input in = {.path = strdup(path)};
    XXH3_state_t *state = XXH3_createState();
    struct stat st;
    if (!in.path || !state || XXH3_128bits_reset(state) == XXH_ERROR) {
        kvd_no_memory(err, "an input", strlen(path));
        goto done;
    }
    if (stat(path, &st)) {
        kvd_fail_errno(err, "cannot open '%s'", path);
        goto done;
    }
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) {
        kvd_fail(err, "'%s' is neither a file nor a folder", path);
        goto done;
    }
    /* Skips a folder among the inputs, because hashing it may take hours. */
    if (S_ISDIR(st.st_mode) && !folders) {
        input_release(&in);
        XXH3_freeState(state);
        return 0;
    }
    if (S_ISDIR(st.st_mode) ? hash_folder(state, path, &in.bytes, err)
                            : hash_file(state, path, &in.bytes, err))
        goto done;
    put_digest(state, in.hash);
    if (kvd_h5_identify(path, &in.schema, &in.made_by, &in.seconds, err) ||
        append_input(run, &in, err))
        goto done;
    rc = 0;
done:
    XXH3_freeState(state);
    if (rc)
        input_release(&in);
    return rc;
}

int kvd_run_add_input(kvd_run *run, const char *path, kvd_err *err)
{
    return add_path(run, path, false, err);
}

int kvd_run_add_inputs(kvd_run *run, const char *const *path, size_t n, kvd_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (path[i] && kvd_run_add_input(run, path[i], err))
            return -1;
    return 0;
}

int kvd_run_add_model(kvd_run *run, const char *path, kvd_err *err)
{
    return add_path(run, path, true, err);
}

int kvd_run_add_made_input(kvd_run *run, const char *name, const char *hash, kvd_err *err)
{
    kvd_run_input in = {.path = strdup(name), .schema = strdup(""), .made_by = strdup("")};
    int status =
        in.path && in.schema && in.made_by ? 0 : kvd_no_memory(err, "an input", strlen(name));
    if (!status && snprintf(in.hash, sizeof in.hash, "%s", hash) >= (int)sizeof in.hash)
        status = kvd_fail(err, "the hash of '%s' is too long", name);
    if (!status)
        status = append_input(run, &in, err);
    if (status)
        input_release(&in);
    return status;
}

int kvd_run_not_the_input(const char *path, const char *input, kvd_err *err)
{
    struct stat target, folder, in;
    if (stat(input, &in))
        return 0;
    /* real path of the output; NULL if the file does not exist yet */
    char *const real = realpath(path, NULL);
    if (!real && errno == ENOMEM)
        return kvd_no_memory(err, "a path", strlen(path));
    const bool there = real && !stat(real, &target);
    const char *const at = real ? real : path;
    size_t n = strlen(at);
    while (n > 1 && at[n - 1] == '/')
        n--;
    while (n > 0 && at[n - 1] != '/')
        n--;
    char *const name = n ? strndup(at, n) : strdup(".");
    int rc = name ? 0 : kvd_no_memory(err, "a path", strlen(path));
    const bool in_folder = name && !stat(name, &folder);
    if (!rc && there && in.st_dev == target.st_dev && in.st_ino == target.st_ino)
        rc = kvd_fail(err, "cannot write '%s': it is the input '%s'", path, input);
    else if (!rc && in_folder && in.st_dev == folder.st_dev && in.st_ino == folder.st_ino)
        rc = kvd_fail(err, "cannot write '%s': it would be part of the input folder '%s'", path,
                      input);
    free(real);
    free(name);
    return rc;
}

int kvd_run_not_an_input(const kvd_run *run, const char *path, kvd_err *err)
{
    for (int i = 0; i < run->n_inputs; i++)
        if (kvd_run_not_the_input(path, run->inputs[i].path, err))
            return -1;
    return 0;
}

int kvd_run_parameter(kvd_run *run, const char *name, kvd_err *err, const char *fmt, ...)
{
    const size_t bytes = ((size_t)run->n_parameters + 1) * sizeof *run->parameters;
    char(*more)[2][512] = realloc(run->parameters, bytes);
    if (!more)
        return kvd_no_memory(err, "parameters", bytes);
    run->parameters = more;
    char(*row)[512] = more[run->n_parameters];
    if (snprintf(row[0], sizeof row[0], "%s", name) >= (int)sizeof row[0])
        return kvd_fail(err, "parameter '%s': the name is too long", name);
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(row[1], sizeof row[1], fmt, ap);
    va_end(ap);
    if (n < 0)
        return kvd_fail(err, "parameter '%s' cannot be written as text", name);
    if ((size_t)n >= sizeof row[1])
        memcpy(row[1] + kvd_utf8_first_bad(row[1], sizeof row[1] - 4), "...", 4);
    run->n_parameters++;
    return 0;
}

const char *kvd_version(void)
{
    return KVD_VERSION;
}

const char *kvd_git_revision(void)
{
    return KVD_GIT_REVISION;
}

const char *kvd_cpu_name(void)
{
    static char name[128];
    if (name[0])
        return name;
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f)
        fclose(f);
    if (!name[0])
        strcpy(name, "unknown");
    return name;
}
