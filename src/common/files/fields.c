#include "common/files/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

int kvd_field_text(kvd_h5 *f, const char *where, const char *name, char *to, size_t size,
                   kvd_err *err)
{
    char *text;
    if (kvd_h5_get_text(f, where, name, &text, err))
        return -1;
    const size_t n = strlen(text), control = kvd_utf8_first_control(text);
    snprintf(to, size, "%s", text);
    free(text);
    if (control < n)
        return kvd_fail(err, "'%s': byte %zu of attribute %s of %s is a control character", f->path,
                        control + 1, name, where);
    return n < size ? 0
                    : kvd_fail(err, "'%s': attribute %s of %s is longer than %zu bytes", f->path,
                               name, where, size - 1);
}

int kvd_field_text_or_none(kvd_h5 *f, const char *name, char *to, size_t size, kvd_err *err)
{
    to[0] = '\0';
    const htri_t there = H5Aexists(f->id, name);
    if (there < 0)
        return kvd_fail(err, "'%s': cannot look for attribute %s", f->path, name);
    return there ? kvd_field_text(f, "/", name, to, size, err) : 0;
}

int kvd_field_int(kvd_h5 *f, const char *where, const char *name, int64_t lo, int64_t hi,
                  int64_t *out, kvd_err *err)
{
    if (kvd_h5_get_int(f, where, name, out, err))
        return -1;
    if (*out < lo || *out > hi)
        return kvd_fail(err, "'%s': attribute %s of %s is %lld, should be %lld to %lld", f->path,
                        name, where, (long long)*out, (long long)lo, (long long)hi);
    return 0;
}

int kvd_field_size(kvd_h5 *f, const char *where, const char *name, size_t lo, size_t hi,
                   size_t *out, kvd_err *err)
{
    int64_t value;
    if (kvd_field_int(f, where, name, (int64_t)lo, (int64_t)hi, &value, err))
        return -1;
    *out = (size_t)value;
    return 0;
}

int kvd_field_small(kvd_h5 *f, const char *where, const char *name, int lo, int hi, int *out,
                    kvd_err *err)
{
    int64_t value;
    if (kvd_field_int(f, where, name, lo, hi, &value, err))
        return -1;
    *out = (int)value;
    return 0;
}

int kvd_field_layers(kvd_h5 *f, const char *path, int rank, int most, int *n_layers, kvd_err *err)
{
    hsize_t dims[KVD_MAX_RANK];
    if (kvd_h5_shape(f, path, rank, dims, err))
        return -1;
    if (dims[0] < 1 || dims[0] > (hsize_t)most)
        return kvd_fail(err, "'%s': %s has %llu layers, the model %d", f->path, path,
                        (unsigned long long)dims[0], most);
    *n_layers = (int)dims[0];
    return 0;
}

int kvd_field_write_tokens(kvd_h5 *f, const char *long_name, size_t n_tokens, kvd_err *err)
{
    const uint64_t n = n_tokens;
    const kvd_h5_spec spec = {
        .path = "/n_tokens", .long_name = long_name, .units = "1", .type = H5T_STD_U64LE};
    return kvd_h5_write(f, &spec, H5T_NATIVE_UINT64, &n, err);
}

int kvd_field_tokens(kvd_h5 *f, size_t least, size_t *n_tokens, kvd_err *err)
{
    uint64_t n;
    if (kvd_h5_read(f, "/n_tokens", 0, NULL, H5T_NATIVE_UINT64, &n, err))
        return -1;
    if (n < least || n > (uint64_t)1 << 60)
        return kvd_fail(err, "'%s': %llu tokens", f->path, (unsigned long long)n);
    *n_tokens = (size_t)n;
    return 0;
}

int kvd_field_write_reals(kvd_h5 *f, const char *path, const char *long_name, const char *axis,
                          const double *x, size_t n, kvd_err *err)
{
    const kvd_h5_spec spec = {path, long_name, "1", H5T_IEEE_F64LE, 1, {n}, {axis}};
    return kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x, err);
}

int kvd_field_shape(kvd_h5 *f, const char *path, int rank, const hsize_t *want, kvd_err *err)
{
    hsize_t got[KVD_MAX_RANK];
    if (kvd_h5_shape(f, path, rank, got, err))
        return -1;
    for (int i = 0; i < rank; i++)
        if (got[i] != want[i])
            return kvd_fail(err, "'%s': %s has length %llu on axis %d, should have %llu", f->path,
                            path, (unsigned long long)got[i], i, (unsigned long long)want[i]);
    return 0;
}

int kvd_field_write_corpus_hash(kvd_h5 *f, const char *hash, kvd_err *err)
{
    const size_t n = strcspn(hash, "+");
    char tokens[KVD_CORPUS_HASH_TEXT];
    snprintf(tokens, sizeof tokens, "%.*s", (int)n, hash);
    return kvd_h5_put_text(f, "/", "corpus_hash", tokens, err) ||
           (hash[n] && kvd_h5_put_text(f, "/", "corpus_start", hash + n + 1, err));
}

int kvd_field_corpus_hash(kvd_h5 *f, char hash[KVD_CORPUS_HASH_TEXT], kvd_err *err)
{
    char start[17];
    if (kvd_field_text(f, "/", "corpus_hash", hash, 40, err) ||
        kvd_field_text_or_none(f, "corpus_start", start, sizeof start, err))
        return -1;
    const size_t n = strlen(hash);
    if (*start)
        snprintf(hash + n, KVD_CORPUS_HASH_TEXT - n, "+%s", start);
    return 0;
}

void kvd_field_add_hash(char *sum, size_t size, const char *other)
{
    unsigned long long a[2], b[2];
    if (sscanf(sum, "xxh3:%16llx%16llx", &a[0], &a[1]) == 2 &&
        sscanf(other, "xxh3:%16llx%16llx", &b[0], &b[1]) == 2)
        snprintf(sum, size, "xxh3:%016llx%016llx", a[0] + b[0], a[1] + b[1]);
}

void kvd_field_add_label(char *sum, size_t size, const char *other)
{
    if (!strcmp(sum, other))
        return;
    const size_t n = strlen(sum);
    snprintf(sum + n, size - n, "+%s", other);
    kvd_utf8_drop_cut(sum);
}

int kvd_field_write_texts(kvd_h5 *f, const char *path, const char *long_name, const char *axis,
                          const char *const *text, size_t n, kvd_err *err)
{
    size_t longest = 1;
    for (size_t i = 0; i < n; i++)
        longest = strlen(text[i]) > longest ? strlen(text[i]) : longest;
    char *all = calloc(n, longest);
    hid_t type = H5Tcopy(H5T_C_S1);
    int status = -1;
    if (!all) {
        kvd_no_memory(err, path, n * longest);
        goto done;
    }
    if (type < 0 || H5Tset_size(type, longest) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        kvd_fail(err, "cannot make a text type of %zu bytes for '%s'", longest, path);
        goto done;
    }
    for (size_t i = 0; i < n; i++)
        memcpy(all + i * longest, text[i], strlen(text[i]));
    const kvd_h5_spec spec = {path, long_name, "1", type, 1, {n}, {axis}};
    status = kvd_h5_write(f, &spec, type, all, err);
done:
    if (type >= 0)
        H5Tclose(type);
    free(all);
    return status;
}

int kvd_field_read_texts(hid_t dataset, const char *file, const char *path, size_t n, char **text,
                         kvd_err *err)
{
    int status = -1;
    hid_t mem = H5I_INVALID_HID;
    char *fixed = NULL;
    const hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    const size_t size = type < 0 ? 0 : H5Tget_size(type);
    const hssize_t found = space < 0 ? -1 : H5Sget_simple_extent_npoints(space);
    if (found < 0 || (uint64_t)found != n) {
        kvd_fail(err, "'%s': '%s' has %lld texts, should have %zu", file, path, (long long)found,
                 n);
        goto done;
    }
    if (type < 0 || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0) {
        kvd_fail(err, "'%s': '%s' does not hold texts of fixed length", file, path);
        goto done;
    }
    if (size == 0 || n > SIZE_MAX / size) {
        kvd_fail(err, "'%s': '%s' has texts of %zu bytes", file, path, size);
        goto done;
    }
    fixed = kvd_new(n * size, 1, path, err);
    if (!fixed)
        goto done;
    mem = H5Tcopy(type);
    if (mem < 0 || H5Tset_strpad(mem, H5T_STR_NULLPAD) < 0 ||
        H5Dread(dataset, mem, H5S_ALL, H5S_ALL, H5P_DEFAULT, fixed) < 0) {
        kvd_fail(err, "'%s': cannot read '%s'", file, path);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        text[i] = strndup(fixed + i * size, size);
        if (!text[i]) {
            kvd_no_memory(err, path, size + 1);
            goto done;
        }
        const size_t length = strlen(text[i]), bad = kvd_utf8_first_bad(text[i], length);
        if (bad < length) {
            kvd_fail(err, "'%s': '%s' row %zu is not valid UTF-8 at byte %zu", file, path, i, bad);
            goto done;
        }
    }
    status = 0;
done:
    free(fixed);
    if (mem >= 0)
        H5Tclose(mem);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return status;
}
