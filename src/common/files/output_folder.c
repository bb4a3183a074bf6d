#include "common/files/output_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/files/output_internal.h"

/* Returns true if `contents` lists `name`. In `contents`, names of subfolders end in '/'. */
static bool listed(const char *const *contents, const char *name, bool folder)
{
    const size_t n = strlen(name);
    for (; contents && *contents; contents++)
        if (!strncmp(*contents, name, n) && !strcmp(*contents + n, folder ? "/" : ""))
            return true;
    return false;
}

/* Removes a folder if `contents` lists everything in it. If only_check, only checks this. */
static int remove_folder(const char *path, const char *const *contents, bool only_check,
                         kvd_err *err)
{
    DIR *const dir = opendir(path);
    if (!dir)
        return kvd_fail_errno(err, "cannot list '%s'", path);
    int rc = 0;
    for (const struct dirent *d; !rc && (d = readdir(dir));) {
        struct stat st;
        char *inner = NULL;
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
            continue;
        if (fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW))
            rc = kvd_fail_errno(err, "cannot open '%s' in '%s'", d->d_name, path);
        else if (contents ? !listed(contents, d->d_name, S_ISDIR(st.st_mode)) : S_ISDIR(st.st_mode))
            rc = kvd_fail(
                err,
                "cannot remove '%s' in '%s': this program did not write it; move it away or choose "
                "another output folder",
                d->d_name, path);
        else if (S_ISDIR(st.st_mode) && asprintf(&inner, "%s/%s", path, d->d_name) < 0)
            rc = kvd_no_memory(err, "a path", strlen(path));
        else if (S_ISDIR(st.st_mode))
            rc = remove_folder(inner, NULL, only_check, err);
        else if (!only_check && unlinkat(dirfd(dir), d->d_name, 0))
            rc = kvd_fail_errno(err, "cannot remove '%s' in '%s'", d->d_name, path);
        free(inner);
    }
    closedir(dir);
    if (!rc && !only_check && rmdir(path))
        rc = kvd_fail_errno(err, "cannot remove '%s'", path);
    return rc;
}

static int check_target(const char *path, bool replace, kvd_err *err)
{
    struct stat st;
    char *const parent = kvd_output_parent(path);
    int rc = 0;
    if (!parent)
        return kvd_no_memory(err, "a path", strlen(path));
    if (stat(parent, &st))
        rc = kvd_fail_errno(err, "cannot write '%s': folder '%s'", path, parent);
    else if (!S_ISDIR(st.st_mode))
        rc = kvd_fail(err, "cannot write '%s': '%s' is not a folder", path, parent);
    else if (!lstat(path, &st))
        rc = !S_ISDIR(st.st_mode) ? kvd_fail(err, "cannot write '%s': it is not a folder", path)
             : replace            ? 0
                                  : kvd_fail(err, "cannot write '%s': it exists", path);
    else if (errno != ENOENT)
        rc = kvd_fail_errno(err, "cannot write '%s'", path);
    free(parent);
    return rc;
}

static int make_partial(const kvd_output *out, kvd_err *err)
{
    struct stat st;
    if (!lstat(out->partial, &st)) {
        if (!S_ISDIR(st.st_mode))
            return kvd_fail(err, "cannot create '%s': it is not a folder", out->partial);
        if (remove_folder(out->partial, out->contents, false, err))
            return -1;
    }
    return mkdir(out->partial, 0777) ? kvd_fail_errno(err, "cannot create '%s'", out->partial) : 0;
}

/* If `make`, creates the subfolders of NAME.partial, otherwise flushes them to disk. */
static int each_inner(const kvd_output *out, bool make, kvd_err *err)
{
    int rc = 0;
    for (const char *const *c = out->contents; c && *c && !rc; c++) {
        if ((*c)[strlen(*c) - 1] != '/')
            continue;
        char *const path = kvd_output_folder_file(out, *c, err);
        rc = !path  ? -1
             : make ? kvd_make_folder(path, err)
                    : kvd_output_sync(path, O_RDONLY | O_DIRECTORY, err);
        free(path);
    }
    return rc;
}

static void drop_lock(kvd_output *out)
{
    if (out->lock_fd >= 0) {
        (void)unlink(out->lock);
        close(out->lock_fd);
    }
    kvd_output_forget(out);
}

static int begin(kvd_output *out, const char *path, bool replace, const char *const *contents,
                 kvd_err *err)
{
    *out = (kvd_output){.lock_fd = -1, .contents = contents};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || path[n - 1] == '/')
        return kvd_fail(err, "cannot write a folder called '%s'", path);
    if (kvd_output_check_name(path, err))
        return -1;
    out->path = strndup(path, n);
    if (!out->path || asprintf(&out->partial, "%s.partial", out->path) < 0 ||
        asprintf(&out->lock, "%s.lock", out->path) < 0) {
        kvd_output_forget(out);
        return kvd_no_memory(err, "a path", n);
    }
    if (check_target(out->path, replace, err) || kvd_output_lock(out, err)) {
        kvd_output_forget(out);
        return -1;
    }
    struct stat st;
    if ((contents && !lstat(out->path, &st) && remove_folder(out->path, contents, true, err)) ||
        make_partial(out, err)) {
        drop_lock(out);
        return -1;
    }
    if (each_inner(out, true, err)) {
        kvd_output_folder_release(out);
        return -1;
    }
    return 0;
}

int kvd_output_folder_begin(kvd_output *out, const char *path, bool replace, kvd_err *err)
{
    return begin(out, path, replace, NULL, err);
}

int kvd_output_folder_renew(kvd_output *out, const char *path, const char *const *contents,
                            kvd_err *err)
{
    struct stat st;
    char *real = NULL;
    *out = (kvd_output){.lock_fd = -1};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *const name = strndup(path, n);
    if (!name)
        return kvd_no_memory(err, "a path", n);
    const char *const slash = strrchr(name, '/'), *const last = slash ? slash + 1 : name;
    const bool link = !lstat(name, &st) && S_ISLNK(st.st_mode);
    int rc = -1;
    if (!strcmp(last, ".") || !strcmp(last, ".."))
        kvd_fail(err, "cannot replace the folder '%s': give its name", path);
    else if (link && !(real = realpath(name, NULL)))
        kvd_fail_errno(err, "cannot write '%s': its link", path);
    else
        rc = begin(out, real ? real : name, true, contents, err);
    free(real);
    free(name);
    return rc;
}

int kvd_output_folder_spares(const char *path, const char *input, kvd_err *err)
{
    char *const folder = realpath(path, NULL);
    if (!folder)
        return errno == ENOMEM ? kvd_no_memory(err, "a path", strlen(path)) : 0;
    char *const in = realpath(input, NULL);
    const size_t n = strlen(folder);
    int rc = 0;
    if (!in)
        rc = kvd_fail_errno(err, "cannot open '%s'", input);
    else if (!strncmp(in, folder, n) && (in[n] == '/' || !in[n]))
        rc = kvd_fail(err, "cannot replace '%s': it holds the input '%s'", path, input);
    free(in);
    free(folder);
    return rc;
}

/* Renames NAME to NAME.old, then NAME.partial to NAME, and removes NAME.old. */
static int step_aside(const kvd_output *out, kvd_err *err)
{
    char *old = NULL;
    if (asprintf(&old, "%s.old", out->path) < 0)
        return kvd_no_memory(err, "a path", strlen(out->path));
    int rc = 0;
    if (rename(out->path, old)) {
        rc = kvd_fail_errno(err, "cannot rename '%s' to '%s'", out->path, old);
    } else if (rename(out->partial, out->path)) {
        rc = kvd_fail_errno(err, "cannot rename '%s' to '%s'", out->partial, out->path);
        (void)rename(old, out->path);
    } else {
        rc = remove_folder(old, out->contents, false, err);
    }
    free(old);
    return rc;
}

static int put_in_place(const kvd_output *out, bool replace, kvd_err *err)
{
    struct stat st;
    if (!replace || lstat(out->path, &st))
        return rename(out->partial, out->path)
                   ? kvd_fail_errno(err, "cannot rename '%s' to '%s'", out->partial, out->path)
                   : 0;
    if (!renameat2(AT_FDCWD, out->partial, AT_FDCWD, out->path, RENAME_EXCHANGE))
        return remove_folder(out->partial, out->contents, false, err);
    /* Network file systems that cannot exchange two names return these errors. */
    if (errno == EINVAL || errno == ENOSYS)
        return step_aside(out, err);
    return kvd_fail_errno(err, "cannot exchange '%s' and '%s'", out->partial, out->path);
}

int kvd_output_folder_commit(kvd_output *out, bool replace, kvd_err *err)
{
    char *const parent = kvd_output_parent(out->path);
    if (!parent)
        return kvd_no_memory(err, "a path", strlen(out->path));
    int rc =
        each_inner(out, false, err) || kvd_output_sync(out->partial, O_RDONLY | O_DIRECTORY, err);
    rc = rc || put_in_place(out, replace, err) ||
         kvd_output_sync(parent, O_RDONLY | O_DIRECTORY, err);
    free(parent);
    if (!rc)
        drop_lock(out);
    return kvd_status(rc);
}

void kvd_output_folder_release(kvd_output *out)
{
    if (!out->path)
        return;
    kvd_err ignored;
    struct stat st;
    if (!lstat(out->partial, &st))
        (void)remove_folder(out->partial, out->contents, false, &ignored);
    drop_lock(out);
}

char *kvd_output_folder_file(const kvd_output *out, const char *name, kvd_err *err)
{
    char *path;
    if (asprintf(&path, "%s/%s", out->partial, name) >= 0)
        return path;
    (void)kvd_no_memory(err, "a path", strlen(out->partial) + strlen(name));
    return NULL;
}

/* Appends the rest of file `from` to file `to`. If `from` is NULL, appends the `len` bytes of
 * `text` instead. Closes neither file. */
static int write_all(FILE *to, const char *path, FILE *from, const char *text, size_t len,
                     kvd_err *err)
{
    char buffer[1 << 13];
    size_t n = 0;
    if (!from && fwrite(text, 1, len, to) != len)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    while (from && (n = fread(buffer, 1, sizeof buffer, from)) > 0)
        if (fwrite(buffer, 1, n, to) != n)
            return kvd_fail_errno(err, "cannot write '%s'", path);
    if (from && ferror(from))
        return kvd_fail_errno(err, "cannot read what goes into '%s'", path);
    return fflush(to) || fsync(fileno(to)) ? kvd_fail_errno(err, "cannot write '%s'", path) : 0;
}

static int write_file(const kvd_output *out, const char *name, FILE *from, const char *text,
                      size_t len, kvd_err *err)
{
    char *const path = kvd_output_folder_file(out, name, err);
    FILE *const f = path ? fopen(path, "wbx") : NULL;
    int rc = -1;
    if (path && !f)
        kvd_fail_errno(err, "cannot create '%s'", path);
    if (f)
        rc = write_all(f, path, from, text, len, err);
    if (f && fclose(f) && !rc)
        rc = kvd_fail_errno(err, "cannot write '%s'", path);
    free(path);
    return rc;
}

int kvd_output_folder_text(const kvd_output *out, const char *name, const char *text, size_t len,
                           kvd_err *err)
{
    return write_file(out, name, NULL, text, len, err);
}

int kvd_output_folder_copy(const kvd_output *out, const char *name, const char *from, kvd_err *err)
{
    FILE *const f = fopen(from, "rb");
    if (!f)
        return kvd_fail_errno(err, "cannot open '%s'", from);
    const int rc = write_file(out, name, f, NULL, 0, err);
    fclose(f);
    return rc;
}
