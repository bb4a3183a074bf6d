/* Reads an HDF5 file in a child process, because HDF5 1.10 crashes on damaged files. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/files/h5_internal.h"

enum { PROBE_SECONDS = 20 };
/* largest number of bytes that a child process reads from a dataset to check a file */
static const size_t probe_bytes = (size_t)16 << 20;
/* memory limit, in bytes, of the child process that checks a file */
static const size_t probe_memory = (size_t)2 << 30;

typedef struct {
    const char *path;
    kvd_err *err;
} probe_context;

/* Finds the size of an element and the number of elements. Sets *known to true for strings, enums
 * and numbers. Fails on number types that kvdim never writes. */
static int item_size(hid_t type, hid_t space, size_t *size, hssize_t *n, bool *known)
{
    const H5T_class_t class = H5Tget_class(type);
    *size = H5Tget_size(type);
    *n = H5Sget_simple_extent_npoints(space);
    if (class == H5T_NO_CLASS || *size == 0 || *n < 0)
        return -1;
    *known = class == H5T_STRING || class == H5T_ENUM || class == H5T_INTEGER || class == H5T_FLOAT;
    return kvd_status((class == H5T_INTEGER || class == H5T_FLOAT) && !kvd_h5_known_number(type));
}

static void free_texts(hid_t type, hid_t space, void *data)
{
    if (H5Tis_variable_str(type) > 0)
        (void)H5Dvlen_reclaim(type, space, H5P_DEFAULT, data);
}

static herr_t probe_attribute(hid_t object, const char *name, const H5A_info_t *info, void *ctx)
{
    (void)info;
    probe_context *p = ctx;
    herr_t rc = -1;
    void *data = NULL;
    size_t size;
    hssize_t n;
    bool known;
    const hid_t attr = H5Aopen(object, name, H5P_DEFAULT);
    const hid_t type = attr < 0 ? attr : H5Aget_type(attr),
                space = attr < 0 ? attr : H5Aget_space(attr);
    if (type < 0 || space < 0 || item_size(type, space, &size, &n, &known)) {
        kvd_h5_fail(p->err, "attribute '%s'", name);
        goto done;
    }
    if (known && n > 0) {
        if ((size_t)n > probe_bytes / size) {
            kvd_fail(p->err, "attribute '%s' has %lld values", name, (long long)n);
            goto done;
        }
        data = malloc((size_t)n * size);
        if (!data || H5Aread(attr, type, data) < 0) {
            kvd_h5_fail(p->err, "attribute '%s'", name);
            goto done;
        }
        free_texts(type, space, data);
    }
    rc = 0;
done:
    free(data);
    kvd_h5_drop(space);
    kvd_h5_drop(type);
    kvd_h5_drop(attr);
    return rc;
}

static int read_part(hid_t dataset, hid_t type, hid_t space, int rank, const hsize_t *start,
                     const hsize_t *count, void *data)
{
    const hid_t memory = H5Screate_simple(rank, count, NULL);
    const int bad = memory < 0 ||
                    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
                    H5Dread(dataset, type, memory, space, H5P_DEFAULT, data) < 0;
    if (!bad) {
        free_texts(type, memory, data);
        kvd_h5_drop(memory);
    }
    return bad;
}

/* Reads the values of a dataset to see if that fails; if the dataset is large, only the first and
 * the last part. */
static int probe_values(hid_t dataset, hid_t type, hid_t space, size_t size, hssize_t n)
{
    hsize_t dims[H5S_MAX_RANK], slab[H5S_MAX_RANK], start[H5S_MAX_RANK] = {0};
    const int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    if (rank < 0 || size > probe_bytes)
        return -1;
    (void)H5Dget_storage_size(dataset);
    size_t bytes = (size_t)n * size;
    if ((size_t)n > probe_bytes / size) {
        kvd_h5_slab_dims(rank, dims, size, probe_bytes, slab);
        bytes = size;
        for (int i = 0; i < rank; i++)
            bytes *= (size_t)slab[i];
    }
    void *data = malloc(bytes);
    int bad = !data;
    if (!bad && (size_t)n <= probe_bytes / size) {
        bad = H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0;
        if (!bad)
            free_texts(type, space, data);
    } else if (!bad) {
        bad = read_part(dataset, type, space, rank, start, slab, data);
        for (int i = 0; i < rank; i++)
            start[i] = dims[i] - slab[i];
        bad = bad || read_part(dataset, type, space, rank, start, slab, data);
    }
    free(data);
    return kvd_status(bad);
}

static int probe_dataset(hid_t dataset, const char *name, kvd_err *err)
{
    int rc = -1;
    size_t size;
    hssize_t n;
    bool known;
    const hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    const hid_t made = H5Dget_create_plist(dataset);
    if (type < 0 || space < 0 || made < 0 || item_size(type, space, &size, &n, &known)) {
        kvd_h5_fail(err, "dataset '%s'", name);
        goto done;
    }
    const H5D_layout_t layout = H5Pget_layout(made);
    if ((layout != H5D_COMPACT && layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) ||
        H5Pget_external_count(made) != 0) {
        kvd_fail(err, "dataset '%s' keeps its values in another file", name);
        goto done;
    }
    if (known && n > 0 && probe_values(dataset, type, space, size, n)) {
        kvd_h5_fail(err, "dataset '%s'", name);
        goto done;
    }
    rc = 0;
done:
    kvd_h5_drop(made);
    kvd_h5_drop(space);
    kvd_h5_drop(type);
    return rc;
}

static int probe_object(hid_t object, const char *name, probe_context *p)
{
    const H5I_type_t kind = H5Iget_type(object);
    if (kind != H5I_GROUP && kind != H5I_DATASET && kind != H5I_DATATYPE)
        return kvd_h5_fail(p->err, "'%s' is no object", name);
    if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, probe_attribute, p) < 0) {
        if (!p->err->msg[0])
            kvd_h5_fail(p->err, "the attributes");
        return kvd_in(p->err, "'%s'", name);
    }
    return kind == H5I_DATASET ? probe_dataset(object, name, p->err) : 0;
}

static herr_t probe_link(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    probe_context *p = ctx;
    if (info->type != H5L_TYPE_HARD)
        return kvd_fail(p->err, "'%s' is a link to somewhere else", name);
    const hid_t object = H5Oopen(group, name, H5P_DEFAULT);
    if (object < 0)
        return kvd_h5_fail(p->err, "'%s'", name);
    const int rc = probe_object(object, name, p);
    kvd_h5_drop(object);
    return rc;
}

static int probe_file(const char *path, kvd_err *err)
{
    probe_context p = {path, err};
    if (kvd_h5_room(path, err))
        return -1;
    const hid_t access = kvd_h5_access();
    /* Uses HDF5's stdio driver, because the default driver could reuse a descriptor that this
     * process has closed. */
    const hid_t file =
        access < 0 || H5Pset_fapl_stdio(access) < 0 ? -1 : H5Fopen(path, H5F_ACC_RDONLY, access);
    if (file < 0)
        return kvd_h5_fail(err, "it cannot be opened");
    const hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
    if (root < 0)
        return kvd_h5_fail(err, "it has no root group");
    if (probe_object(root, "/", &p))
        return -1;
    if (H5Lvisit(root, H5_INDEX_NAME, H5_ITER_NATIVE, probe_link, &p) < 0)
        return err->msg[0] ? -1 : kvd_h5_fail(err, "its groups cannot be listed");
    return 0;
}

static void limit(int resource, rlim_t value)
{
    struct rlimit r;
    if (getrlimit((__rlimit_resource_t)resource, &r))
        return;
    if (r.rlim_max != RLIM_INFINITY && value > r.rlim_max)
        value = r.rlim_max;
    r.rlim_cur = value;
    (void)setrlimit((__rlimit_resource_t)resource, &r);
}

static size_t address_space(void)
{
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%zu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* file descriptor to which the child process writes why it refuses the file */
enum { ANSWER = 3 };
/* exit statuses of the child process that tries to read the file */
enum { DAMAGED = 1, NOT_OPENED = 3 };

_Noreturn static void answer_with(const char *text, int status)
{
    _exit(write(ANSWER, text, strlen(text)) < 0 ? 2 : status);
}

_Noreturn static void child(const char *path, int answer, size_t in_use)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF, SIGPIPE};
    /* Closes all file descriptors except the standard ones and ANSWER: an open descriptor would
     * keep an output file locked. */
    if (answer != ANSWER && dup2(answer, ANSWER) < 0)
        _exit(2);
    (void)close_range(ANSWER + 1, ~0U, 0);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        (void)signal(fatal[i], SIG_DFL);
    /* Ignores Ctrl-C: a killed child process would make the HDF5 file look damaged. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_WRONLY);
    if (null >= 0) {
        (void)dup2(null, STDERR_FILENO);
        close(null);
    }
    /* HDF5 does not say why it cannot open a file, but open() does. */
    const int file = open(path, O_RDONLY | O_NONBLOCK);
    if (file < 0)
        answer_with(strerror(errno), NOT_OPENED);
    close(file);
    limit(RLIMIT_CORE, 0);
    if (in_use)
        limit(RLIMIT_AS, in_use + probe_memory);
    /* Limits the processor time of this process. A limit of elapsed time would depend on the
     * disk. */
    const struct itimerval limit = {.it_value = {.tv_sec = PROBE_SECONDS}};
    (void)setitimer(ITIMER_PROF, &limit, NULL);
    kvd_err err = {""};
    if (probe_file(path, &err))
        answer_with(err.msg, DAMAGED);
    _exit(0);
}

static uint64_t little_endian(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

int kvd_h5_check_replaced(const char *path, kvd_err *err)
{
    unsigned char head[sizeof signature];
    const char *const dot = strrchr(path, '.');
    if (dot && !strcmp(dot, ".h5"))
        return 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    const ssize_t n = pread(fd, head, sizeof head, 0);
    close(fd);
    return n <= 0 || (n == sizeof head && !memcmp(head, signature, sizeof head))
               ? 0
               : kvd_fail(err,
                          "cannot write '%s': it exists and is not an HDF5 file; choose another "
                          "name, or remove it first",
                          path);
}

static int check_start(const char *path, kvd_err *err)
{
    unsigned char head[64] = {0};
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    int rc = -1;
    if (fstat(fd, &st)) {
        kvd_fail_errno(err, "cannot open '%s'", path);
    } else if (S_ISDIR(st.st_mode)) {
        kvd_fail(err, "'%s' is a folder, not an HDF5 file", path);
    } else if (!S_ISREG(st.st_mode)) {
        kvd_fail(err, "'%s' is not a regular file", path);
    } else if (st.st_size == 0) {
        kvd_fail(err, "'%s' is empty", path);
    } else {
        const ssize_t n = pread(fd, head, sizeof head, 0);
        if (n < 0)
            kvd_fail_errno(err, "cannot read '%s'", path);
        else if (n < 8 || memcmp(head, signature, 8))
            kvd_fail(err, "'%s' is not an HDF5 file", path);
        else
            rc = 0;
    }
    close(fd);
    if (rc)
        return rc;
    /* Compares the file's size with the size stored in HDF5's superblock. */
    const int version = head[8];
    const size_t at = version == 0 ? 40 : version == 1 ? 44 : 28;
    const bool offsets_of_8 = (version <= 1 ? head[13] : head[9]) == 8;
    const uint64_t end = little_endian(head + at);
    if (st.st_size < 96 ||
        (version <= 3 && offsets_of_8 && end > (uint64_t)st.st_size && end < UINT64_MAX / 2))
        return kvd_fail(err, "'%s' is cut short: it has %lld of %llu bytes", path,
                        (long long)st.st_size,
                        (unsigned long long)(st.st_size < 96 && end < 96 ? 96 : end));
    return 0;
}

/* result of checking a file: the reason to refuse the file, or "" if HDF5 can read it */
typedef struct {
    struct stat file;
    char reason[sizeof((kvd_err *)NULL)->msg];
} verdict;

enum { KEPT = 64 };
/* latest results of checking if HDF5 can read a file: the reason why it cannot, or "" if it can */
static verdict kept[KEPT];
static size_t n_kept;

static bool same_moment(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           same_moment(a->st_mtim, b->st_mtim) && same_moment(a->st_ctim, b->st_ctim);
}

static const verdict *find_verdict(const struct stat *file)
{
    for (size_t i = 0; i < KEPT && i < n_kept; i++)
        if (same_file(&kept[i].file, file))
            return &kept[i];
    return NULL;
}

/* Stores *v, the result of checking if HDF5 can read a file. Stores nothing if the file changed in
 * the last second, because a further change could have the same time stamp. */
static void keep_verdict(const char *path, const verdict *v)
{
    struct stat now;
    if (!stat(path, &now) && same_file(&now, &v->file) && time(NULL) > now.st_mtim.tv_sec + 1 &&
        time(NULL) > now.st_ctim.tv_sec + 1)
        kept[n_kept++ % KEPT] = *v;
}

/* Writes to `reason` why the child process refused the file, or "" if it accepted the file. `said`:
 * message of the child. */
static void reason_of(int status, const char *said, char *reason, size_t size)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        *reason = '\0';
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)
        snprintf(reason, size, "reading it did not end within %d s of computing", PROBE_SECONDS);
    else if (WIFSIGNALED(status))
        snprintf(reason, size, "reading it ends with signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(reason, size, "%s", *said ? said : "it cannot be read");
}

static int judge(const char *path, char *reason, size_t size, kvd_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return kvd_fail_errno(err, "cannot check '%s'", path);
    const size_t in_use = address_space();
    const pid_t pid = fork();
    if (pid < 0) {
        kvd_fail_errno(err, "cannot check '%s'", path);
        close(ends[0]);
        close(ends[1]);
        return -1;
    }
    if (pid == 0)
        child(path, ends[1], in_use);
    close(ends[1]);
    char text[sizeof err->msg] = "";
    size_t got = 0;
    while (got < sizeof text - 1) {
        const ssize_t n = read(ends[0], text + got, sizeof text - 1 - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    close(ends[0]);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return kvd_fail_errno(err, "cannot check '%s'", path);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_OPENED)
        return kvd_fail(err, "cannot open '%s': %s", path, text);
    reason_of(status, text, reason, size);
    return 0;
}

int kvd_h5_probe(const char *path, kvd_err *err)
{
    struct stat st;
    if (check_start(path, err))
        return -1;
    if (stat(path, &st))
        return kvd_fail_errno(err, "cannot open '%s'", path);
    verdict v = {.file = st};
    const verdict *const known = find_verdict(&st);
    if (known) {
        v = *known;
    } else {
        if (judge(path, v.reason, sizeof v.reason, err))
            return -1;
        keep_verdict(path, &v);
    }
    char limit[KVD_MEMORY_LIMIT_TEXT];
    if (*v.reason && kvd_memory_limit(limit))
        return kvd_fail(err,
                        "'%s' is damaged, or the memory does not suffice to read it: %s; raise %s",
                        path, v.reason, limit);
    return *v.reason ? kvd_fail(err, "'%s' is damaged: %s", path, v.reason) : 0;
}
