#include "common/files/h5.h"

#include <cblas.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/blas.h"
#include "common/files/h5_internal.h"
#include "common/version.h"

static const char prefix[] = "kvdim/";

hid_t kvd_h5_access(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0)
        return access;
    /* Closing a file also closes objects that are open in it. */
    herr_t rc = H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    /* Aligns datasets in the file, because copying aligned data to the page cache is twice as
     * fast. */
    rc = rc < 0 ? rc : H5Pset_alignment(access, 1 << 16, 4096);
    /* Chooses a format version that protects HDF5's own structures by checksums. */
    rc = rc < 0 ? rc : H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_LATEST);
    /* Clears the mark "open for writing", which a killed writer leaves in the file. */
    if (rc >= 0 && H5Pexist(access, "clear_status_flags") > 0)
        rc = H5Pset(access, "clear_status_flags", &(hbool_t){1});
#if H5_VERSION_GE(1, 10, 7)
    /* Switches off HDF5's file locks, which fail on read-only and network folders. */
    rc = rc < 0 ? rc : H5Pset_file_locking(access, 0, 1);
#endif
    if (rc < 0) {
        kvd_h5_drop(access);
        return H5I_INVALID_HID;
    }
    return access;
}

hid_t kvd_h5_creation(hid_t kind)
{
    enum { MOST = 65535 };
    const hid_t made = H5Pcreate(kind);
    if (made >= 0 && H5Pset_attr_phase_change(made, MOST, MOST) < 0) {
        kvd_h5_drop(made);
        return H5I_INVALID_HID;
    }
    return made;
}

int kvd_h5_room(const char *path, kvd_err *err)
{
    const size_t bytes = 8 << 20;
    /* volatile, because a compiler may otherwise remove an allocation that is not used */
    void *volatile room = malloc(bytes);
    if (!room) {
        errno = ENOMEM;
        return kvd_fail_errno(err, "cannot open '%s'", path);
    }
    free(room);
    return 0;
}

static hid_t open_file(const char *path, unsigned flags, kvd_err *err)
{
    if (kvd_h5_room(path, err))
        return H5I_INVALID_HID;
    const hid_t access = kvd_h5_access();
    const hid_t id = access < 0 ? access : H5Fopen(path, flags, access);
    if (id < 0)
        kvd_h5_fail(err, "cannot open '%s'", path);
    kvd_h5_drop(access);
    return id;
}

/* Tries only once to close the file, because a second attempt would repeat a failed flush. */
static int close_file(kvd_h5 *f, const char *name, kvd_err *err)
{
    const hid_t id = f->id;
    f->id = H5I_INVALID_HID;
    return H5Fclose(id) < 0 ? kvd_h5_fail(err, "cannot write '%s'", name) : 0;
}

void kvd_h5_close(kvd_h5 *f, bool keep_partial)
{
    kvd_err ignored;
    /* Deletes an incomplete file before closing it, which saves flushing its data. */
    if (f->writing && !keep_partial && f->output.path)
        (void)unlink(f->output.partial);
    if (f->id > 0)
        (void)close_file(f, "", &ignored);
    if (f->writing)
        kvd_output_release(&f->output, keep_partial);
    free(f->path);
    *f = (kvd_h5){.id = H5I_INVALID_HID};
}

/* Shortens a text of over 50,000 bytes for an HDF5 attribute, and appends how many bytes were cut
 * off. */
static char *shorten(const char *text, kvd_err *err)
{
    enum { MOST = 50000 };
    char *out = NULL;
    const size_t n = strlen(text);
    size_t kept = n < MOST ? n : MOST;
    /* Moves the cut to the start of a UTF-8 character. */
    while (kept < n && ((unsigned char)text[kept] & 0xc0) == 0x80)
        kept--;
    const int rc = kept == n
                       ? asprintf(&out, "%s", text)
                       : asprintf(&out, "%.*s... (%zu bytes more)", (int)kept, text, n - kept);
    if (rc < 0) {
        kvd_no_memory(err, "a text", n);
        return NULL;
    }
    return out;
}

static int put_history(kvd_h5 *f, kvd_err *err)
{
    /* bytes reserved for the attribute `history`, which later programs extend */
    enum { ROOM = 4096 };
    char *old = NULL, *text = NULL, *command = NULL;
    int rc = -1;
    const kvd_run *r = f->run;
    if (f->resumed && kvd_h5_get_text(f, "/", "history", &old, err))
        goto done;
    command = shorten(r->command_line, err);
    if (!command)
        goto done;
    if (asprintf(&text, "%s%s%s %s", old ? old : "", old ? "\n" : "", r->started_utc, command) <
        0) {
        text = NULL;
        kvd_no_memory(err, "the history", strlen(command));
        goto done;
    }
    rc = kvd_h5_put_text_room(f, "/", "history", text, strlen(text) + ROOM, err);
done:
    free(text);
    free(command);
    free(old);
    return rc;
}

static int put_run_lists(kvd_h5 *f, kvd_err *err)
{
    static const char p[] = "/provenance";
    const kvd_run *r = f->run;
    for (; f->n_inputs < r->n_inputs; f->n_inputs++) {
        const kvd_run_input *in = &r->inputs[f->n_inputs];
        char where[64];
        (void)snprintf(where, sizeof where, "%s/inputs/%d", p, f->n_inputs);
        if (kvd_h5_put_text(f, where, "path", in->path, err) ||
            kvd_h5_put_int(f, where, "bytes", (int64_t)in->bytes, err) ||
            kvd_h5_put_text(f, where, "hash", in->hash, err) ||
            kvd_h5_put_text(f, where, "schema", in->schema, err) ||
            kvd_h5_put_text(f, where, "git_revision", in->made_by, err))
            return -1;
    }
    for (; f->n_parameters < r->n_parameters; f->n_parameters++)
        if (kvd_h5_put_text(f, "/parameters", r->parameters[f->n_parameters][0],
                            r->parameters[f->n_parameters][1], err))
            return -1;
    return kvd_h5_put_int(f, p, "input_count", f->n_inputs, err);
}

static int put_provenance(kvd_h5 *f, kvd_err *err)
{
    static const char p[] = "/provenance";
#if defined(__clang__)
    static const char compiler[] = "clang " __clang_version__;
#else
    static const char compiler[] = "gcc " __VERSION__;
#endif
    const kvd_run *r = f->run;
    char host[256] = "", hdf5[64];
    unsigned major, minor, release;
    if (gethostname(host, sizeof host - 1))
        strcpy(host, "unknown");
    if (H5get_libversion(&major, &minor, &release) < 0)
        return kvd_h5_fail(err, "cannot ask for the version of HDF5");
    (void)snprintf(hdf5, sizeof hdf5, "%u.%u.%u", major, minor, release);
    char *command = shorten(r->command_line, err);
    if (!command)
        return -1;
    const char *const texts[][2] = {
        {"program", r->program},
        {"git_revision", kvd_git_revision()},
        {"compiler", compiler},
        {"cflags", KVD_CFLAGS},
        {"hdf5_version", hdf5},
        {"blas", openblas_get_config()},
        {"command_line", command},
        {"started_utc", r->started_utc},
        {"hostname", host},
        {"cpu", kvd_cpu_name()},
        {"gpu", r->gpu[0] ? r->gpu : "none"},
        {"driver", r->driver[0] ? r->driver : "none"},
        {"blas_core", kvd_blas_core()},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof texts / sizeof *texts; i++)
        rc = kvd_h5_put_text(f, p, texts[i][0], texts[i][1], err);
    free(command);
    if (rc || kvd_h5_put_int(f, p, "threads", r->threads, err) ||
        kvd_h5_put_u64(f, p, "seed", r->seed, err) ||
        kvd_h5_put_double(f, p, "elapsed_s", kvd_run_elapsed(r), err))
        return -1;
    return put_run_lists(f, err);
}

int kvd_h5_create_locked(kvd_h5 *f, const kvd_schema *schema, kvd_err *err)
{
    char name[128];
    hid_t access = H5I_INVALID_HID, creation = H5I_INVALID_HID;
    f->writing = true;
    f->resumed = false;
    f->elapsed_before = 0;
    f->reserved = 0;
    f->n_inputs = f->n_parameters = 0;
    f->id = H5I_INVALID_HID;
    if (kvd_h5_room(f->output.partial, err) || kvd_output_clear(f->output.partial, err))
        goto fail;
    access = kvd_h5_access();
    creation = kvd_h5_creation(H5P_FILE_CREATE);
    f->id = access < 0 || creation < 0
                ? H5I_INVALID_HID
                : H5Fcreate(f->output.partial, H5F_ACC_EXCL, creation, access);
    if (f->id < 0) {
        kvd_h5_fail(err, "cannot create '%s'", f->output.partial);
        goto fail;
    }
    (void)snprintf(name, sizeof name, "%s%s", prefix, schema->name);
    if (kvd_h5_put_text(f, "/", "schema", name, err) ||
        kvd_h5_put_int(f, "/", "schema_version", schema->version, err) ||
        kvd_h5_put_text(f, "/", "title", schema->title, err) || put_history(f, err) ||
        kvd_h5_put_int(f, "/", "complete", 0, err) || put_provenance(f, err))
        goto fail;
    kvd_h5_drop(creation);
    kvd_h5_drop(access);
    return 0;
fail:
    kvd_h5_drop(creation);
    kvd_h5_drop(access);
    kvd_h5_close(f, false);
    return -1;
}

static int begin(kvd_h5 *f, const char *path, const kvd_run *run, kvd_err *err)
{
    *f = (kvd_h5){.id = H5I_INVALID_HID, .run = run};
    if (kvd_output_begin(&f->output, path, err))
        return -1;
    f->writing = true;
    if (kvd_run_not_an_input(run, path, err) || kvd_run_not_an_input(run, f->output.partial, err) ||
        kvd_h5_check_replaced(path, err)) {
        kvd_h5_close(f, true);
        return -1;
    }
    f->path = strdup(path);
    if (!f->path) {
        kvd_h5_close(f, true);
        return kvd_no_memory(err, "a path", strlen(path));
    }
    return 0;
}

int kvd_h5_create(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err)
{
    return begin(f, path, run, err) ? -1 : kvd_h5_create_locked(f, schema, err);
}

static int claim_space(kvd_h5 *f, int fd, kvd_err *err)
{
    hsize_t size;
    struct stat st;
    struct statvfs fs;
    if (H5Fget_filesize(f->id, &size) < 0)
        return kvd_h5_fail(err, "cannot write '%s'", f->output.partial);
    if (size <= f->reserved)
        return 0;
    if (fstat(fd, &st) || fstatvfs(fd, &fs))
        return kvd_fail_errno(err, "cannot write '%s'", f->output.partial);
    const uint64_t has = (uint64_t)st.st_blocks * 512, needed = size > has ? size - has : 0;
    const uint64_t available = (uint64_t)fs.f_bavail * fs.f_frsize;
    int rc;
    do
        rc = fallocate(fd, 0, 0, (off_t)size);
    while (rc && errno == EINTR);
    if (rc && errno == EOPNOTSUPP)
        rc = needed > available ? (errno = ENOSPC, -1) : 0;
    if (rc && errno == ENOSPC)
        return kvd_fail(err, "cannot reserve space for '%s': %llu bytes are needed, %llu are free",
                        f->output.partial, (unsigned long long)needed,
                        (unsigned long long)available);
    if (rc)
        return kvd_fail_errno(err, "cannot reserve %llu bytes for '%s'", (unsigned long long)needed,
                              f->output.partial);
    f->reserved = size;
    return 0;
}

static int put_elapsed(kvd_h5 *f, kvd_err *err)
{
    return kvd_h5_put_double(f, "/provenance", "elapsed_s",
                             f->elapsed_before + kvd_run_elapsed(f->run), err);
}

int kvd_h5_sync(kvd_h5 *f, kvd_err *err)
{
    void *handle = NULL;
    if (put_elapsed(f, err))
        return -1;
    if (H5Fflush(f->id, H5F_SCOPE_GLOBAL) < 0 ||
        H5Fget_vfd_handle(f->id, H5P_DEFAULT, &handle) < 0 || !handle)
        return kvd_h5_fail(err, "cannot write '%s'", f->output.partial);
    const int fd = *(const int *)handle;
    if (claim_space(f, fd, err))
        return -1;
    if (fdatasync(fd))
        return kvd_fail_errno(err, "cannot flush '%s' to disk", f->output.partial);
    return 0;
}

int kvd_h5_finish(kvd_h5 *f, kvd_err *err)
{
    if (put_run_lists(f, err) || put_elapsed(f, err) || (f->resumed && put_history(f, err)) ||
        kvd_h5_put_int(f, "/", "complete", 1, err))
        return -1;
    if (close_file(f, f->output.partial, err) || kvd_output_commit(&f->output, err))
        return -1;
    kvd_h5_close(f, true);
    return 0;
}

/* Reads the name of the file's schema, such as "moments" for "kvdim/moments". The caller frees
 * *name. */
static int get_schema(kvd_h5 *f, char **name, kvd_err *err)
{
    kvd_err why;
    char *text = NULL;
    if (kvd_h5_get_text(f, "/", "schema", &text, &why))
        return kvd_fail(err, "'%s' is not a kvdim file: it has no text attribute 'schema'",
                        f->path);
    if (strncmp(text, prefix, strlen(prefix))) {
        kvd_fail(err, "'%s' is not a kvdim file: its schema is '%s'", f->path, text);
        free(text);
        return -1;
    }
    memmove(text, text + strlen(prefix), strlen(text) - strlen(prefix) + 1);
    *name = text;
    return 0;
}

static int check_schema(kvd_h5 *f, const kvd_schema *schema, bool same_version, kvd_err *err)
{
    char *name = NULL;
    int64_t version;
    if (get_schema(f, &name, err))
        return -1;
    int rc = 0;
    if (strcmp(name, schema->name))
        rc = kvd_fail(err, "'%s' holds kvdim/%s, kvdim/%s is wanted", f->path, name, schema->name);
    else if (kvd_h5_get_int(f, "/", "schema_version", &version, err))
        rc = -1;
    else if (version > schema->version || version < 1 ||
             (same_version && version != schema->version))
        rc =
            kvd_fail(err, "'%s' has version %lld of kvdim/%s, this program knows versions up to %d",
                     f->path, (long long)version, schema->name, schema->version);
    free(name);
    return rc;
}

/* Opens a kvdim file of any schema. After a failure the caller must close *f. */
static int open_any(kvd_h5 *f, const char *path, kvd_err *err)
{
    *f = (kvd_h5){.id = H5I_INVALID_HID, .path = strdup(path)};
    if (!f->path)
        return kvd_no_memory(err, "a path", strlen(path));
    if (kvd_h5_probe(path, err))
        return -1;
    f->id = open_file(path, H5F_ACC_RDONLY, err);
    return kvd_status(f->id < 0);
}

static int check_complete(kvd_h5 *f, kvd_err *err)
{
    int64_t complete;
    if (kvd_h5_get_int(f, "/", "complete", &complete, err))
        return -1;
    if (complete != 1)
        return kvd_fail(err, "'%s' is incomplete: the program that wrote it did not finish",
                        f->path);
    return 0;
}

int kvd_h5_open(kvd_h5 *f, const char *path, const kvd_schema *schema, kvd_err *err)
{
    if (open_any(f, path, err) || check_schema(f, schema, false, err) || check_complete(f, err)) {
        kvd_h5_close(f, true);
        return -1;
    }
    return 0;
}

int kvd_h5_peek_schema(const char *path, char *name, size_t size, kvd_err *err)
{
    kvd_h5 f;
    char *text = NULL;
    int rc = -1;
    if (open_any(&f, path, err) || get_schema(&f, &text, err))
        goto done;
    if (strlen(text) >= size) {
        kvd_fail(err, "'%s' has a schema of %zu letters, at most %zu are known", path, strlen(text),
                 size - 1);
        goto done;
    }
    strcpy(name, text);
    rc = 0;
done:
    free(text);
    kvd_h5_close(&f, true);
    return rc;
}

int kvd_h5_identify(const char *path, char **schema, char **made_by, double *seconds, kvd_err *err)
{
    kvd_h5 f;
    kvd_err why;
    char *name = NULL, *revision = NULL, *full = NULL;
    *schema = *made_by = NULL;
    *seconds = 0;
    if (!open_any(&f, path, &why) && !get_schema(&f, &name, &why)) {
        if (asprintf(&full, "%s%s", prefix, name) < 0)
            full = NULL;
        (void)kvd_h5_get_text(&f, "/provenance", "git_revision", &revision, &why);
        if (kvd_h5_get_double(&f, "/provenance", "elapsed_s", seconds, &why))
            *seconds = 0;
    }
    kvd_h5_close(&f, true);
    free(name);
    *schema = full ? full : strdup("");
    *made_by = revision ? revision : strdup("");
    if (*schema && *made_by)
        return 0;
    free(*schema);
    free(*made_by);
    *schema = *made_by = NULL;
    return kvd_no_memory(err, "a text", 1);
}

static int resume(kvd_h5 *f, const kvd_schema *schema, kvd_err *err)
{
    if (kvd_h5_probe(f->output.partial, err))
        return -1;
    f->id = open_file(f->output.partial, H5F_ACC_RDWR, err);
    if (f->id < 0 || check_schema(f, schema, true, err) ||
        kvd_h5_get_double(f, "/provenance", "elapsed_s", &f->elapsed_before, err))
        return -1;
    f->n_inputs = f->run->n_inputs;
    f->n_parameters = f->run->n_parameters;
    f->resumed = true;
    return kvd_h5_put_int(f, "/", "complete", 0, err);
}

int kvd_h5_reopen(kvd_h5 *f, const char *path, const kvd_schema *schema, const kvd_run *run,
                  kvd_err *err)
{
    if (begin(f, path, run, err))
        return -1;
    if (access(f->output.partial, F_OK) && errno == ENOENT)
        return 0;
    if (resume(f, schema, err)) {
        const kvd_err why = *err;
        kvd_fail(err, "cannot resume: %s; remove '%s' or run without --resume", why.msg,
                 f->output.partial);
        kvd_h5_close(f, true);
        return -1;
    }
    return 0;
}
