#include "common/files/output_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

void kvd_output_forget(kvd_output *out)
{
    free(out->path);
    free(out->partial);
    free(out->lock);
    *out = (kvd_output){.lock_fd = -1};
}

char *kvd_output_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

int kvd_output_check_name(const char *path, kvd_err *err)
{
    return strcmp(path, "-") ? 0
                             : kvd_fail(err, "cannot write to standard output ('-'): give the name "
                                             "of a file, or ./- for a file called '-'");
}

static int check_target(const char *path, kvd_err *err)
{
    struct stat st;
    char *folder = kvd_output_parent(path);
    int rc = 0;
    if (!folder)
        return kvd_no_memory(err, "a path", strlen(path));
    if (stat(folder, &st))
        rc = kvd_fail_errno(err, "cannot write '%s': folder '%s'", path, folder);
    else if (!S_ISDIR(st.st_mode))
        rc = kvd_fail(err, "cannot write '%s': '%s' is not a folder", path, folder);
    else if (!stat(path, &st) && S_ISDIR(st.st_mode))
        rc = kvd_fail(err, "cannot write '%s': it is a folder", path);
    else if (!stat(path, &st) && !S_ISREG(st.st_mode))
        rc = kvd_fail(err, "cannot write '%s': it is not a regular file", path);
    /* Fails now, because the rename at the end would replace even a write-protected file. */
    else if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) && errno == EACCES)
        rc = kvd_fail(err,
                      "cannot write '%s': it exists and is write-protected; choose another name, "
                      "or chmod u+w it",
                      path);
    free(folder);
    return rc;
}

static bool is_plain(const struct stat *st)
{
    return S_ISREG(st->st_mode) && st->st_nlink <= 1;
}

static int fail_not_plain(const char *path, const struct stat *st, kvd_err *err)
{
    const char *const what = S_ISREG(st->st_mode)    ? "has other hard links"
                             : S_ISLNK(st->st_mode)  ? "is a symbolic link"
                             : S_ISDIR(st->st_mode)  ? "is a folder"
                             : S_ISFIFO(st->st_mode) ? "is a FIFO"
                             : S_ISSOCK(st->st_mode) ? "is a socket"
                                                     : "is a device";
    return kvd_fail(err, "cannot write '%s': it %s; remove it first", path, what);
}

int kvd_output_check_derived(const char *path, kvd_err *err)
{
    struct stat st;
    if (lstat(path, &st))
        return errno == ENOENT ? 0 : kvd_fail_errno(err, "cannot create '%s'", path);
    return is_plain(&st) ? 0 : fail_not_plain(path, &st, err);
}

int kvd_output_clear(const char *path, kvd_err *err)
{
    if (kvd_output_check_derived(path, err))
        return -1;
    return !unlink(path) || errno == ENOENT ? 0 : kvd_fail_errno(err, "cannot remove '%s'", path);
}

FILE *kvd_output_create(const char *path, kvd_err *err)
{
    if (kvd_output_clear(path, err))
        return NULL;
    FILE *const f = fopen(path, "wbx");
    if (!f)
        kvd_fail_errno(err, "cannot create '%s'", path);
    return f;
}

static int fail_held(int fd, const char *path, kvd_err *err)
{
    char pid[24] = "";
    const ssize_t n = pread(fd, pid, sizeof pid - 1, 0);
    pid[n > 0 ? n : 0] = '\0';
    pid[strspn(pid, "0123456789")] = '\0';
    return kvd_fail(err, "'%s' is being written by another program (pid %s)", path,
                    *pid ? pid : "unknown");
}

/* Opens or creates the lock file, a regular file with one hard link. */
static int open_lock(const char *path, kvd_err *err)
{
    struct stat st;
    if (kvd_output_check_derived(path, err))
        return -1;
    /* O_NONBLOCK keeps open() from waiting for a FIFO. */
    const int fd =
        open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd < 0)
        return kvd_fail_errno(err, "cannot create '%s'", path);
    const bool known = !fstat(fd, &st);
    if (known && is_plain(&st))
        return fd;
    if (known)
        fail_not_plain(path, &st, err);
    else
        kvd_fail_errno(err, "cannot create '%s'", path);
    close(fd);
    return -1;
}

int kvd_output_lock(kvd_output *out, kvd_err *err)
{
    for (;;) {
        struct stat held, named;
        const int fd = open_lock(out->lock, err);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            if (errno == EWOULDBLOCK) {
                fail_held(fd, out->path, err);
            } else {
                kvd_fail_errno(err, "cannot lock '%s', write to a file system that has locks",
                               out->lock);
                (void)unlink(out->lock);
            }
            close(fd);
            return -1;
        }
        /* Tries again if the lock file was removed before it was locked. */
        if (fstat(fd, &held) || lstat(out->lock, &named) || held.st_ino != named.st_ino ||
            held.st_dev != named.st_dev) {
            close(fd);
            continue;
        }
        if (ftruncate(fd, 0) || dprintf(fd, "%ld\n", (long)getpid()) < 0) {
            kvd_fail_errno(err, "cannot write '%s'", out->lock);
            unlink(out->lock);
            close(fd);
            return -1;
        }
        out->lock_fd = fd;
        return 0;
    }
}

int kvd_output_begin(kvd_output *out, const char *path, kvd_err *err)
{
    *out = (kvd_output){.lock_fd = -1};
    const size_t n = strlen(path);
    if (n == 0)
        return kvd_fail(err, "the name of the output file is empty");
    if (kvd_output_check_name(path, err))
        return -1;
    if (path[n - 1] == '/')
        return kvd_fail(err, "cannot write '%s': it is a folder", path);
    if (check_target(path, err))
        return -1;
    /* If `path` is a symbolic link, the file that it points to is replaced, not the link. */
    struct stat st;
    if (!lstat(path, &st) && S_ISLNK(st.st_mode)) {
        out->path = realpath(path, NULL);
        if (!out->path)
            return kvd_fail_errno(err, "cannot write '%s': its link", path);
    } else {
        out->path = strdup(path);
    }
    if (!out->path || asprintf(&out->partial, "%s.partial", out->path) < 0 ||
        asprintf(&out->lock, "%s.lock", out->path) < 0) {
        kvd_output_forget(out);
        return kvd_no_memory(err, "a path", n);
    }
    if (kvd_output_check_derived(out->partial, err) || kvd_output_lock(out, err)) {
        kvd_output_forget(out);
        return -1;
    }
    return 0;
}

/* Returns the path without symbolic links. The caller frees it. */
static char *resolve(const char *path, kvd_err *err)
{
    struct stat st;
    const char *const slash = strrchr(path, '/');
    const bool link = !lstat(path, &st) && S_ISLNK(st.st_mode);
    errno = 0;
    char *name = link ? realpath(path, NULL) : NULL;
    char *const parent = name || errno == ENOMEM ? NULL : kvd_output_parent(path);
    char *const folder = parent ? realpath(parent, NULL) : NULL;
    /* Ignores a missing folder, which kvd_output_begin reports later. */
    if (parent &&
        ((!folder && errno == ENOMEM) ||
         asprintf(&name, "%s/%s", folder ? folder : parent, slash ? slash + 1 : path) < 0))
        name = NULL;
    free(parent);
    free(folder);
    if (!name)
        (void)kvd_no_memory(err, "a path", strlen(path));
    return name;
}

/* Returns ending number i of an output's file names: "", ".partial", ".lock", then further endings
 * of this output. Returns NULL after the last ending. */
static const char *ending(const kvd_output_name *name, size_t i)
{
    static const char *const always[] = {"", ".partial", ".lock"};
    enum { ALWAYS = sizeof always / sizeof *always };
    return i < ALWAYS ? always[i] : name->beside ? name->beside[i - ALWAYS] : NULL;
}

static bool same_joined(const char *a, const char *x, const char *b, const char *y)
{
    const size_t n = strlen(a), m = strlen(b), total = n + strlen(x);
    bool same = total == m + strlen(y);
    for (size_t i = 0; same && i < total; i++)
        same = (i < n ? a[i] : x[i - n]) == (i < m ? b[i] : y[i - m]);
    return same;
}

static int check_pair(const kvd_output_name *a, const char *a_name, const kvd_output_name *b,
                      const char *b_name, kvd_err *err)
{
    const char *x, *y;
    if (!strcmp(a_name, b_name))
        return kvd_fail(err, "%s and %s name the same file '%s'", b->option, a->option, b->path);
    for (size_t i = 0; (x = ending(a, i)); i++)
        for (size_t j = 0; (y = ending(b, j)); j++)
            if (same_joined(a_name, x, b_name, y))
                return kvd_fail(err,
                                "%s '%s' and %s '%s' would both write '%s%s': choose another name",
                                a->option, a->path, b->option, b->path, a->path, x);
    return 0;
}

int kvd_output_distinct(const kvd_output_name *name, size_t n, kvd_err *err)
{
    char **const resolved = calloc(n ? n : 1, sizeof *resolved);
    int status = resolved ? 0 : kvd_no_memory(err, "paths", n * sizeof *resolved);
    for (size_t i = 0; !status && i < n; i++)
        status = kvd_status(name[i].path && !(resolved[i] = resolve(name[i].path, err)));
    for (size_t i = 0; !status && i < n; i++)
        for (size_t j = i + 1; !status && j < n; j++)
            if (resolved[i] && resolved[j])
                status = check_pair(&name[i], resolved[i], &name[j], resolved[j], err);
    for (size_t i = 0; resolved && i < n; i++)
        free(resolved[i]);
    free(resolved);
    return status;
}

int kvd_output_sync(const char *path, int flags, kvd_err *err)
{
    const int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    int rc = 0;
    /* EINVAL means that folders of this file system need no sync. */
    if (fsync(fd) && errno != EINVAL)
        rc = kvd_fail_errno(err, "cannot flush '%s' to disk", path);
    if (close(fd) && !rc)
        rc = kvd_fail_errno(err, "cannot close '%s'", path);
    return rc;
}

int kvd_output_commit(kvd_output *out, kvd_err *err)
{
    int rc = -1;
    char *folder = kvd_output_parent(out->path);
    if (!folder) {
        kvd_no_memory(err, "a path", strlen(out->path));
        goto done;
    }
    if (kvd_output_sync(out->partial, O_RDONLY, err))
        goto done;
    if (rename(out->partial, out->path)) {
        kvd_fail_errno(err, "cannot rename '%s' to '%s'", out->partial, out->path);
        goto done;
    }
    if (kvd_output_sync(folder, O_RDONLY | O_DIRECTORY, err))
        goto done;
    rc = 0;
done:
    free(folder);
    if (!rc)
        kvd_output_release(out, true);
    return rc;
}

void kvd_output_release(kvd_output *out, bool keep_partial)
{
    if (!out->path)
        return;
    if (!keep_partial)
        (void)unlink(out->partial);
    if (out->lock_fd >= 0) {
        (void)unlink(out->lock);
        close(out->lock_fd);
    }
    kvd_output_forget(out);
}

int kvd_output_remove(const char *path, kvd_err *err)
{
    kvd_output out;
    if (kvd_output_begin(&out, path, err))
        return -1;
    const int status = kvd_output_clear(path, err);
    kvd_output_release(&out, false);
    return status;
}

int kvd_output_text(const char *path, const char *text, size_t len, kvd_err *err)
{
    kvd_output out;
    if (kvd_output_begin(&out, path, err))
        return -1;
    int rc = -1;
    FILE *f = kvd_output_create(out.partial, err);
    if (!f)
        goto done;
    const bool short_write = fwrite(text, 1, len, f) != len;
    if (fclose(f) || short_write) {
        kvd_fail_errno(err, "cannot write '%s'", out.partial);
        goto done;
    }
    rc = kvd_output_commit(&out, err);
done:
    kvd_output_release(&out, false);
    return rc;
}

int kvd_make_folder(const char *path, kvd_err *err)
{
    char *copy = strdup(path);
    if (!copy)
        return kvd_no_memory(err, "a path", strlen(path));
    int rc = 0;
    for (char *p = copy + (*copy == '/'); !rc && *copy; p++) {
        if (*p && *p != '/')
            continue;
        const char saved = *p;
        *p = '\0';
        struct stat st;
        if (mkdir(copy, 0777) && errno != EEXIST)
            rc = kvd_fail_errno(err, "cannot make the folder '%s'", copy);
        else if (stat(copy, &st))
            rc = kvd_fail_errno(err, "cannot open the folder '%s'", copy);
        else if (!S_ISDIR(st.st_mode))
            rc = kvd_fail(err, "cannot make the folder '%s': '%s' is a file", path, copy);
        *p = saved;
        if (!saved)
            break;
    }
    if (!*copy)
        rc = kvd_fail(err, "the name of the folder is empty");
    free(copy);
    return rc;
}
