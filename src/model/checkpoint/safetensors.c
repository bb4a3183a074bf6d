#include "model/checkpoint/safetensors.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/checkpoint/filemap.h"

/* LENGTH_BYTES: size of the number that gives the header's length. MAX_HEADER_BYTES: size of the
 * largest header that the safetensors library reads. */
enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100 * 1000 * 1000 };

/* data type that safetensors files may have, whether kvdim supports it or not */
typedef struct {
    const char *name;
    unsigned bits;
    int usable;
    kvd_dtype type;
} stored_dtype;

static const stored_dtype dtypes[] = {
    {"F32", 32, 1, KVD_F32},        {"F16", 16, 1, KVD_F16},        {"BF16", 16, 1, KVD_BF16},
    {"BOOL", 8, 0, KVD_F32},        {"F4", 4, 0, KVD_F32},          {"F6_E2M3", 6, 0, KVD_F32},
    {"F6_E3M2", 6, 0, KVD_F32},     {"U8", 8, 0, KVD_F32},          {"I8", 8, 0, KVD_F32},
    {"F8_E5M2", 8, 0, KVD_F32},     {"F8_E4M3", 8, 0, KVD_F32},     {"F8_E8M0", 8, 0, KVD_F32},
    {"F8_E4M3FNUZ", 8, 0, KVD_F32}, {"F8_E5M2FNUZ", 8, 0, KVD_F32}, {"I16", 16, 0, KVD_F32},
    {"U16", 16, 0, KVD_F32},        {"I32", 32, 0, KVD_F32},        {"U32", 32, 0, KVD_F32},
    {"F64", 64, 0, KVD_F32},        {"I64", 64, 0, KVD_F32},        {"U64", 64, 0, KVD_F32},
    {"C64", 64, 0, KVD_F32},
};

typedef struct {
    /* name of the tensor; its memory belongs to the JSON object of the file's header */
    const char *name;
    const stored_dtype *dtype;
    int rank;
    size_t dims[KVD_TENSOR_RANK];
    size_t n, begin, end;
} entry;

struct kvd_safetensors {
    char *file;
    kvd_filemap map;
    const unsigned char *data;
    json_t *header;
    entry *entries; /* sorted by name */
    size_t count;
};

static const stored_dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

unsigned kvd_safetensors_bits(const char *dtype)
{
    const stored_dtype *const d = find_dtype(dtype);
    return d ? d->bits : 0;
}

/* Reads an integer >= 0 from JSON. Returns -1 if the value is anything else. */
static int read_size(const json_t *value, size_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return -1;
    *out = (size_t)json_integer_value(value);
    return 0;
}

static int read_shape(entry *e, const json_t *shape, size_t *bytes, kvd_err *err)
{
    if (!json_is_array(shape))
        return kvd_fail(err, "'shape' is not a list");
    if (json_array_size(shape) > KVD_TENSOR_RANK)
        return kvd_fail(err, "%zu dimensions, at most %d are supported", json_array_size(shape),
                        KVD_TENSOR_RANK);
    e->rank = (int)json_array_size(shape);
    e->n = 1;
    for (int i = 0; i < e->rank; i++) {
        if (read_size(json_array_get(shape, (size_t)i), &e->dims[i]))
            return kvd_fail(err, "shape[%d] is not a non-negative integer", i);
        if (__builtin_mul_overflow(e->n, e->dims[i], &e->n))
            return kvd_fail(err, "the product of its shape overflows at shape[%d] = %zu", i,
                            e->dims[i]);
    }
    size_t bits = 0;
    if (__builtin_mul_overflow(e->n, (size_t)e->dtype->bits, &bits))
        return kvd_fail(err, "the size of %zu elements of %s overflows", e->n, e->dtype->name);
    if (bits % 8)
        return kvd_fail(err, "%zu elements of %s are not whole bytes", e->n, e->dtype->name);
    *bytes = bits / 8;
    return 0;
}

static int read_entry(entry *e, const json_t *value, size_t data_len, kvd_err *err)
{
    if (!json_is_object(value))
        return kvd_fail(err, "its entry is not an object");
    const json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    if (!dtype || !shape || !offsets || json_object_size(value) != 3)
        return kvd_fail(err, "its entry must hold dtype, shape and data_offsets and nothing else");
    if (!json_is_string(dtype))
        return kvd_fail(err, "'dtype' is not a string");
    e->dtype = find_dtype(json_string_value(dtype));
    if (!e->dtype)
        return kvd_fail(err, "unknown dtype '%s'", json_string_value(dtype));
    size_t bytes = 0;
    if (read_shape(e, shape, &bytes, err))
        return -1;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        read_size(json_array_get(offsets, 0), &e->begin) ||
        read_size(json_array_get(offsets, 1), &e->end))
        return kvd_fail(err, "'data_offsets' is not a list of two non-negative integers");
    if (e->begin > e->end)
        return kvd_fail(err, "data_offsets [%zu, %zu] run backwards", e->begin, e->end);
    if (e->end > data_len)
        return kvd_fail(err, "data_offsets end at %zu, the file holds %zu bytes of data", e->end,
                        data_len);
    if (e->end - e->begin != bytes)
        return kvd_fail(err, "data_offsets span %zu bytes, its shape and dtype %s need %zu",
                        e->end - e->begin, e->dtype->name, bytes);
    return 0;
}

static int check_metadata(const json_t *metadata, kvd_err *err)
{
    if (!json_is_object(metadata))
        return kvd_fail(err, "'__metadata__' is not an object");
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return kvd_fail(err, "'__metadata__' key '%s' is not a string", key);
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    /* Orders an empty tensor before another tensor that begins at the same byte. */
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static int name_order(const void *key, const void *e)
{
    return strcmp(key, ((const entry *)e)->name);
}

static int check_coverage(entry *entries, size_t count, size_t data_len, kvd_err *err)
{
    size_t at = 0;
    const char *before = "";
    if (count)
        qsort(entries, count, sizeof *entries, by_offset);
    for (size_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        if (e->begin < at)
            return kvd_fail(err,
                            "tensor '%s' begins at byte %zu, inside tensor '%s' that ends at %zu",
                            e->name, e->begin, before, at);
        if (e->begin > at)
            return kvd_fail(err,
                            "bytes %zu to %zu of the data, before tensor '%s', belong to no tensor",
                            at, e->begin, e->name);
        at = e->end;
        before = e->name;
    }
    if (at != data_len)
        return kvd_fail(err, "the tensors end at byte %zu of the data, the file holds %zu", at,
                        data_len);
    return 0;
}

static int read_header(kvd_safetensors *s, const unsigned char *bytes, size_t len, kvd_err *err)
{
    if (len < LENGTH_BYTES)
        return kvd_fail(err, "not a safetensors file: %zu bytes, the header length alone takes %d",
                        len, LENGTH_BYTES);
    uint64_t header_len = 0;
    for (int i = LENGTH_BYTES; i-- > 0;)
        header_len = header_len << 8 | bytes[i];
    if (header_len > MAX_HEADER_BYTES)
        return kvd_fail(err, "not a safetensors file: header of %llu bytes, at most %d are allowed",
                        (unsigned long long)header_len, MAX_HEADER_BYTES);
    if (header_len > len - LENGTH_BYTES)
        return kvd_fail(
            err, "header of %llu bytes in a file of %zu: cut short, or not a safetensors file",
            (unsigned long long)header_len, len);
    const char *text = (const char *)bytes + LENGTH_BYTES;
    if (header_len == 0 || text[0] != '{')
        return kvd_fail(err, "not a safetensors file: the header does not begin with '{'");
    json_error_t where;
    s->header = json_loadb(text, (size_t)header_len, JSON_REJECT_DUPLICATES, &where);
    if (!s->header)
        return kvd_fail(err, "header, byte %d: %s", where.position, where.text);

    const size_t data_len = len - LENGTH_BYTES - (size_t)header_len;
    s->data = bytes + LENGTH_BYTES + header_len;
    const size_t room = json_object_size(s->header);
    s->entries = calloc(room ? room : 1, sizeof *s->entries);
    if (!s->entries)
        return kvd_no_memory(err, "the list of tensors", room * sizeof *s->entries);
    const char *key;
    json_t *value;
    json_object_foreach(s->header, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            if (check_metadata(value, err))
                return -1;
            continue;
        }
        entry *e = &s->entries[s->count++];
        e->name = key;
        if (read_entry(e, value, data_len, err))
            return kvd_in(err, "tensor '%s'", key);
    }
    if (check_coverage(s->entries, s->count, data_len, err))
        return -1;
    if (s->count)
        qsort(s->entries, s->count, sizeof *s->entries, by_name);
    return 0;
}

static kvd_safetensors *new_empty(const char *name, kvd_err *err)
{
    kvd_safetensors *s = calloc(1, sizeof *s);
    if (s)
        s->file = strdup(name);
    if (!s || !s->file) {
        free(s);
        kvd_no_memory(err, "a safetensors file", sizeof *s + strlen(name));
        return NULL;
    }
    return s;
}

kvd_safetensors *kvd_safetensors_open(const char *path, kvd_err *err)
{
    kvd_safetensors *s = new_empty(path, err);
    if (!s)
        return NULL;
    if (kvd_filemap_load(&s->map, path, err))
        goto fail;
    if (read_header(s, s->map.bytes, s->map.len, err)) {
        kvd_in(err, "'%s'", path);
        goto fail;
    }
    return s;
fail:
    kvd_safetensors_close(s);
    return NULL;
}

kvd_safetensors *kvd_safetensors_parse(const char *name, const void *bytes, size_t len,
                                       kvd_err *err)
{
    kvd_safetensors *s = new_empty(name, err);
    if (!s)
        return NULL;
    if (read_header(s, bytes, len, err)) {
        kvd_in(err, "'%s'", name);
        kvd_safetensors_close(s);
        return NULL;
    }
    return s;
}

void kvd_safetensors_close(kvd_safetensors *s)
{
    if (!s)
        return;
    free(s->entries);
    json_decref(s->header);
    kvd_filemap_release(&s->map);
    free(s->file);
    free(s);
}

size_t kvd_safetensors_count(const kvd_safetensors *s)
{
    return s->count;
}

const char *kvd_safetensors_name(const kvd_safetensors *s, size_t i)
{
    return s->entries[i].name;
}

int kvd_safetensors_find(const kvd_safetensors *s, const char *name, kvd_tensor *out, kvd_err *err)
{
    const entry *e = bsearch(name, s->entries, s->count, sizeof *s->entries, name_order);
    if (!e)
        return 1;
    if (!e->dtype->usable)
        return kvd_fail(err, "'%s': tensor '%s' is %s, only F32, F16 and BF16 are supported",
                        s->file, name, e->dtype->name);
    *out = (kvd_tensor){.name = e->name,
                        .dtype = e->dtype->type,
                        .rank = e->rank,
                        .n = e->n,
                        .data = s->data + e->begin,
                        .file = s->file};
    memcpy(out->dims, e->dims, sizeof out->dims);
    return 0;
}

void kvd_safetensors_stored(const kvd_safetensors *s, size_t i, kvd_tensor_spec *spec,
                            const void **data, size_t *bytes)
{
    const entry *e = &s->entries[i];
    *spec = (kvd_tensor_spec){.name = e->name, .dtype = e->dtype->name, .rank = e->rank};
    memcpy(spec->dims, e->dims, sizeof spec->dims);
    *data = s->data + e->begin;
    *bytes = e->end - e->begin;
}

int kvd_safetensors_stored_of(const kvd_safetensors *s, const char *name, kvd_tensor_spec *spec,
                              const void **data, size_t *bytes, const char **file)
{
    const entry *e = bsearch(name, s->entries, s->count, sizeof *s->entries, name_order);
    if (!e)
        return 1;
    kvd_safetensors_stored(s, (size_t)(e - s->entries), spec, data, bytes);
    *file = s->file;
    return 0;
}

const char *kvd_safetensors_metadata(const kvd_safetensors *s, size_t i, const char **value)
{
    json_t *const all = json_object_get(s->header, "__metadata__"), *text;
    const char *key;
    json_object_foreach(all, key, text)
    {
        *value = json_string_value(text);
        if (i-- == 0)
            return key;
    }
    return NULL;
}

enum { ALIGNMENT = 8 };

struct kvd_safetensors_writer {
    char *path;
    FILE *file;
    const kvd_tensor_spec *spec;
    size_t n, at; /* number of tensors, and index of the tensor being written */
    size_t left;
};

const char *kvd_safetensors_dtype(kvd_dtype t)
{
    return t == KVD_F32 ? "F32" : t == KVD_F16 ? "F16" : "BF16";
}

int kvd_tensor_spec_order(const void *a, const void *b)
{
    const kvd_tensor_spec *const x = a, *const y = b;
    const unsigned p = kvd_safetensors_bits(x->dtype), q = kvd_safetensors_bits(y->dtype);
    return p != q ? (p < q ? 1 : -1) : strcmp(x->name, y->name);
}

int kvd_tensor_spec_bytes(const kvd_tensor_spec *spec, size_t *bytes, kvd_err *err)
{
    size_t bits = kvd_safetensors_bits(spec->dtype);
    if (!bits)
        return kvd_fail(err, "tensor '%s': unknown dtype '%s'", spec->name, spec->dtype);
    if (spec->rank < 0 || spec->rank > KVD_TENSOR_RANK)
        return kvd_fail(err, "tensor '%s': %d dimensions, at most %d are supported", spec->name,
                        spec->rank, KVD_TENSOR_RANK);
    for (int i = 0; i < spec->rank; i++)
        if (__builtin_mul_overflow(bits, spec->dims[i], &bits))
            return kvd_fail(err, "tensor '%s': its size overflows at shape[%d] = %zu", spec->name,
                            i, spec->dims[i]);
    if (bits % 8)
        return kvd_fail(err, "tensor '%s': its %s elements are not whole bytes", spec->name,
                        spec->dtype);
    *bytes = bits / 8;
    return 0;
}

static int add_tensor(json_t *header, const kvd_tensor_spec *spec, size_t *end, kvd_err *err)
{
    size_t bytes = 0;
    const size_t begin = *end;
    if (!spec->name[0] || strcmp(spec->name, "__metadata__") == 0)
        return kvd_fail(err, "a tensor cannot be called '%s'", spec->name);
    if (json_object_get(header, spec->name))
        return kvd_fail(err, "tensor '%s' is there twice", spec->name);
    if (kvd_tensor_spec_bytes(spec, &bytes, err))
        return -1;
    if (__builtin_add_overflow(begin, bytes, end) || *end > INT64_MAX)
        return kvd_fail(err, "tensor '%s': the file's size overflows", spec->name);
    json_t *const shape = json_array();
    for (int i = 0; i < spec->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)spec->dims[i]));
    json_t *const described = json_pack("{s:s, s:o, s:[I,I]}", "dtype", spec->dtype, "shape", shape,
                                        "data_offsets", (json_int_t)begin, (json_int_t)*end);
    return json_object_set_new(header, spec->name, described)
               ? kvd_fail(err, "tensor '%s': its name is not UTF-8, or memory ran out", spec->name)
               : 0;
}

static json_t *make_header(const kvd_safetensors_writer *w, const kvd_safetensors_note *notes,
                           kvd_err *err)
{
    json_t *const header = json_object(), *const metadata = json_object();
    size_t end = 0;
    int status = header && metadata ? 0 : kvd_no_memory(err, "a header", 0);
    for (; !status && notes && (*notes)[0]; notes++)
        if (json_object_set_new(metadata, (*notes)[0], json_string((*notes)[1])))
            status = kvd_fail(err, "metadata '%s' is not UTF-8, or memory ran out", (*notes)[0]);
    if (!status && json_object_size(metadata) && json_object_set(header, "__metadata__", metadata))
        status = kvd_no_memory(err, "a header", 0);
    json_decref(metadata);
    for (size_t i = 0; !status && i < w->n; i++) {
        const kvd_tensor_spec *const s = &w->spec[i];
        status = add_tensor(header, s, &end, err);
        if (!status && i > 0 && kvd_tensor_spec_order(&w->spec[i - 1], s) > 0)
            status = kvd_fail(err, "tensor '%s' is out of order", s->name);
    }
    if (!status)
        return header;
    json_decref(header);
    return NULL;
}

static int put(kvd_safetensors_writer *w, const void *bytes, size_t n, kvd_err *err)
{
    return fwrite(bytes, 1, n, w->file) == n ? 0
                                             : kvd_fail_errno(err, "cannot write '%s'", w->path);
}

static int write_header(kvd_safetensors_writer *w, const kvd_safetensors_note *notes, kvd_err *err)
{
    json_t *const header = make_header(w, notes, err);
    if (!header)
        return -1;
    char *const text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text)
        return kvd_no_memory(err, "a header", 0);
    const size_t len = strlen(text), padded = (len + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    unsigned char length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    const char blanks[ALIGNMENT + 1] = "        ";
    const int status = put(w, length, sizeof length, err) || put(w, text, len, err) ||
                       put(w, blanks, padded - len, err);
    free(text);
    return status ? -1 : 0;
}

static int skip_empty(kvd_safetensors_writer *w, kvd_err *err)
{
    while (w->left == 0 && w->at < w->n) {
        if (kvd_tensor_spec_bytes(&w->spec[w->at], &w->left, err))
            return -1;
        w->at += w->left == 0;
    }
    return 0;
}

kvd_safetensors_writer *kvd_safetensors_create(const char *path, const kvd_tensor_spec *spec,
                                               size_t n, const kvd_safetensors_note *notes,
                                               kvd_err *err)
{
    kvd_safetensors_writer *const w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path))) {
        free(w);
        kvd_no_memory(err, "a safetensors file", sizeof *w);
        return NULL;
    }
    w->spec = spec;
    w->n = n;
    w->file = fopen(path, "wbx");
    if (!w->file)
        kvd_fail_errno(err, "cannot create '%s'", path);
    else if (write_header(w, notes, err) == 0 && skip_empty(w, err) == 0)
        return w;
    kvd_safetensors_abandon(w);
    return NULL;
}

int kvd_safetensors_append(kvd_safetensors_writer *w, const char *name, const void *bytes, size_t n,
                           kvd_err *err)
{
    const char *const next = w->at < w->n ? w->spec[w->at].name : "";
    if (n == 0)
        return 0;
    if (strcmp(name, next) != 0 || n > w->left)
        return kvd_fail(err, "'%s': %zu bytes of tensor '%s' are given, %zu of '%s' are next",
                        w->path, n, name, w->left, next);
    if (put(w, bytes, n, err))
        return -1;
    w->left -= n;
    if (w->left)
        return 0;
    w->at++;
    return skip_empty(w, err);
}

int kvd_safetensors_finish(kvd_safetensors_writer *w, kvd_err *err)
{
    int status = 0;
    if (w->at < w->n)
        status = kvd_fail(err, "'%s': %zu bytes of tensor '%s' were not given", w->path, w->left,
                          w->spec[w->at].name);
    else if (fflush(w->file) || fsync(fileno(w->file)))
        status = kvd_fail_errno(err, "cannot write '%s'", w->path);
    FILE *const file = w->file;
    w->file = NULL;
    if (fclose(file) && !status)
        status = kvd_fail_errno(err, "cannot write '%s'", w->path);
    kvd_safetensors_abandon(w);
    return status;
}

void kvd_safetensors_abandon(kvd_safetensors_writer *w)
{
    if (!w)
        return;
    if (w->file)
        (void)fclose(w->file);
    free(w->path);
    free(w);
}
