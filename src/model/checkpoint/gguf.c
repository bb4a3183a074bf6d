#include "model/checkpoint/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "model/checkpoint/filemap.h"

enum {
    VERSION_MIN = 2,
    VERSION_MAX = 3,
    ALIGNMENT = 32,
    ALIGNMENT_MAX = 1 << 20,
    MAX_COUNT = 1 << 20
};

typedef enum {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    BOOL,
    TEXT,
    LIST,
    U64,
    I64,
    F64,
    N_TYPES
} value_type;
static const char *const type_name[N_TYPES] = {"u8",   "i8",   "u16",  "i16", "u32", "i32", "f32",
                                               "bool", "text", "list", "u64", "i64", "f64"};
static const unsigned char type_bytes[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct {
    const char *key;
    size_t key_len;
    uint32_t type, item; /* type of the value, and of a list's items */
    /* number of bytes of a text, or number of items of a list */
    size_t n;
    const unsigned char *at;
} value;

typedef struct {
    char name[KVD_GGUF_NAME];
    uint32_t type;
    int rank;
    size_t dims[KVD_TENSOR_RANK], n, bytes, offset;
} tensor;

struct kvd_gguf {
    char *path;
    /* mapped file; len is 0 if the caller owns the bytes */
    kvd_filemap map;
    const unsigned char *data;
    value *values; /* sorted by key */
    size_t n_values;
    tensor *tensors; /* in the order of the file */
    const tensor **by_name;
    size_t n_tensors;
};

typedef struct {
    uint32_t type;
    const char *name;
    unsigned block, bytes;
} tensor_type;
static const tensor_type tensor_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {39, "MXFP4", 32, 17},
};

static const tensor_type *find_type(uint32_t type)
{
    for (size_t i = 0; i < sizeof tensor_types / sizeof tensor_types[0]; i++)
        if (tensor_types[i].type == type)
            return &tensor_types[i];
    return NULL;
}

typedef struct {
    const unsigned char *start, *at, *end;
} reader;

static uint64_t number(const unsigned char *p, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static size_t left(const reader *r)
{
    return (size_t)(r->end - r->at);
}

static int cut(const reader *r, const char *what, kvd_err *err)
{
    return kvd_fail(err, "cut short: %s at byte %zu goes beyond the end of the file", what,
                    (size_t)(r->at - r->start));
}

static int take(reader *r, size_t bytes, const char *what, uint64_t *out, kvd_err *err)
{
    if (left(r) < bytes)
        return cut(r, what, err);
    *out = number(r->at, bytes);
    r->at += bytes;
    return 0;
}

static int take_u32(reader *r, const char *what, uint32_t *out, kvd_err *err)
{
    uint64_t v = 0;
    const int status = take(r, 4, what, &v, err);
    *out = (uint32_t)v;
    return status;
}

static int take_text(reader *r, const char *what, const char **s, size_t *len, kvd_err *err)
{
    uint64_t n = 0;
    if (take(r, 8, what, &n, err))
        return -1;
    if (n > left(r))
        return cut(r, what, err);
    *s = (const char *)r->at;
    *len = (size_t)n;
    r->at += n;
    return 0;
}

static int shown(size_t len)
{
    return len < 80 ? (int)len : 80;
}

static int skip_items(reader *r, const value *v, kvd_err *err)
{
    const char *s;
    size_t len;
    if (v->item >= N_TYPES || v->item == LIST)
        return kvd_fail(err, "a list of type %" PRIu32 " is not supported", v->item);
    if (v->item != TEXT) {
        if (v->n > left(r) / type_bytes[v->item])
            return cut(r, "a list", err);
        r->at += v->n * type_bytes[v->item];
        return 0;
    }
    for (size_t i = 0; i < v->n; i++)
        if (take_text(r, "a text of a list", &s, &len, err))
            return -1;
    return 0;
}

static int take_value(reader *r, value *v, kvd_err *err)
{
    const char *s;
    uint64_t n = 0;
    if (take_u32(r, "a value's type", &v->type, err))
        return -1;
    if (v->type >= N_TYPES)
        return kvd_fail(err, "type %" PRIu32 " is not known", v->type);
    v->at = r->at;
    if (v->type == TEXT) {
        if (take_text(r, "a text", &s, &v->n, err))
            return -1;
        v->at = (const unsigned char *)s;
        return 0;
    }
    if (v->type == LIST) {
        if (take_u32(r, "a list's type", &v->item, err) || take(r, 8, "a list's length", &n, err))
            return -1;
        /* Refuses a list longer than the rest of the file, because each item takes at least one
         * byte. */
        if (n > left(r))
            return cut(r, "a list", err);
        v->n = (size_t)n;
        v->at = r->at;
        return skip_items(r, v, err);
    }
    return take(r, type_bytes[v->type], "a value", &n, err);
}

static int compare_keys(const char *a, size_t a_len, const char *b, size_t b_len)
{
    const size_t n = a_len < b_len ? a_len : b_len;
    const int order = n ? memcmp(a, b, n) : 0;
    return order ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_key(const void *a, const void *b)
{
    const value *x = a, *y = b;
    return compare_keys(x->key, x->key_len, y->key, y->key_len);
}

static int take_values(reader *r, kvd_gguf *g, kvd_err *err)
{
    for (size_t i = 0; i < g->n_values; i++) {
        value *v = &g->values[i];
        if (take_text(r, "a key", &v->key, &v->key_len, err))
            return -1;
        if (take_value(r, v, err))
            return kvd_in(err, "'%.*s'", shown(v->key_len), v->key);
    }
    if (g->n_values)
        qsort(g->values, g->n_values, sizeof *g->values, by_key);
    for (size_t i = 1; i < g->n_values; i++)
        if (by_key(&g->values[i - 1], &g->values[i]) == 0)
            return kvd_fail(err, "key '%.*s' occurs twice", shown(g->values[i].key_len),
                            g->values[i].key);
    return 0;
}

static const value *get(const kvd_gguf *g, const char *key)
{
    const value wanted = {.key = key, .key_len = strlen(key)};
    return g->n_values ? bsearch(&wanted, g->values, g->n_values, sizeof *g->values, by_key) : NULL;
}

static bool is_whole(uint32_t type)
{
    return type <= I32 || type == U64 || type == I64;
}

static bool is_real(uint32_t type)
{
    return type == F32 || type == F64;
}

static bool whole_at(const unsigned char *at, uint32_t type, int64_t *out)
{
    const uint64_t u = number(at, type_bytes[type]);
    const bool has_sign = type == I8 || type == I16 || type == I32 || type == I64;
    const unsigned unused = 64 - 8u * type_bytes[type];
    if (!has_sign && u > INT64_MAX)
        return false;
    uint64_t v = u << unused;
    if (has_sign && v >> 63)
        v = unused ? v >> unused | ~(UINT64_MAX >> unused) : v;
    else
        v >>= unused;
    memcpy(out, &v, sizeof v);
    return true;
}

static double real_at(const unsigned char *at, uint32_t type)
{
    const uint64_t u = number(at, type_bytes[type]);
    double d;
    if (type == F32) {
        const uint32_t bits = (uint32_t)u;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    memcpy(&d, &u, sizeof d);
    return d;
}

static int wrong(const char *key, const value *v, const char *wanted, kvd_err *err)
{
    return kvd_fail(err, "'%s' is of type %s%s, not %s", key, v->type == LIST ? "list of " : "",
                    type_name[v->type == LIST ? v->item : v->type], wanted);
}

int kvd_gguf_whole(const kvd_gguf *g, const char *key, int64_t *out, kvd_err *err)
{
    const value *v = get(g, key);
    if (!v)
        return 1;
    if (!is_whole(v->type))
        return wrong(key, v, "a whole number", err);
    return whole_at(v->at, v->type, out) ? 0 : kvd_fail(err, "'%s' is too large", key);
}

int kvd_gguf_real(const kvd_gguf *g, const char *key, double *out, kvd_err *err)
{
    const value *v = get(g, key);
    if (!v)
        return 1;
    if (!is_real(v->type))
        return wrong(key, v, "f32 or f64", err);
    *out = real_at(v->at, v->type);
    return 0;
}

int kvd_gguf_bool(const kvd_gguf *g, const char *key, bool *out, kvd_err *err)
{
    const value *v = get(g, key);
    if (!v)
        return 1;
    if (v->type != BOOL)
        return wrong(key, v, "bool", err);
    if (*v->at > 1)
        return kvd_fail(err, "'%s' is a bool of value %d", key, *v->at);
    *out = *v->at;
    return 0;
}

int kvd_gguf_text(const kvd_gguf *g, const char *key, const char **s, size_t *len, kvd_err *err)
{
    const value *v = get(g, key);
    if (!v)
        return 1;
    if (v->type != TEXT)
        return wrong(key, v, "text", err);
    *s = (const char *)v->at;
    *len = v->n;
    return 0;
}

static int get_list(const kvd_gguf *g, const char *key, bool (*fits)(uint32_t), const char *wanted,
                    kvd_gguf_list *list, kvd_err *err)
{
    const value *v = get(g, key);
    *list = (kvd_gguf_list){0};
    if (!v)
        return 1;
    if (v->type != LIST || !fits(v->item))
        return wrong(key, v, wanted, err);
    *list = (kvd_gguf_list){.at = v->at, .type = v->item, .left = v->n};
    return 0;
}

static bool is_text(uint32_t type)
{
    return type == TEXT;
}

int kvd_gguf_texts(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err)
{
    return get_list(g, key, is_text, "a list of texts", list, err);
}

int kvd_gguf_wholes(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err)
{
    return get_list(g, key, is_whole, "a list of whole numbers", list, err);
}

int kvd_gguf_reals(const kvd_gguf *g, const char *key, kvd_gguf_list *list, kvd_err *err)
{
    return get_list(g, key, is_real, "a list of f32 or f64", list, err);
}

bool kvd_gguf_next_text(kvd_gguf_list *list, const char **s, size_t *len)
{
    if (!list->left)
        return false;
    list->left--;
    *len = (size_t)number(list->at, 8);
    *s = (const char *)list->at + 8;
    list->at += 8 + *len;
    return true;
}

bool kvd_gguf_next_whole(kvd_gguf_list *list, int64_t *out)
{
    if (!list->left)
        return false;
    list->left--;
    if (!whole_at(list->at, list->type, out))
        *out = INT64_MAX;
    list->at += type_bytes[list->type];
    return true;
}

bool kvd_gguf_next_real(kvd_gguf_list *list, double *out)
{
    if (!list->left)
        return false;
    list->left--;
    *out = real_at(list->at, list->type);
    list->at += type_bytes[list->type];
    return true;
}

static int take_shape(reader *r, tensor *t, kvd_err *err)
{
    uint32_t rank = 0;
    uint64_t dim = 0, offset = 0;
    if (take_u32(r, "a tensor's rank", &rank, err))
        return -1;
    if (rank < 1 || rank > KVD_TENSOR_RANK)
        return kvd_fail(err, "has %" PRIu32 " dimensions, not 1 to %d", rank, KVD_TENSOR_RANK);
    t->rank = (int)rank;
    t->n = 1;
    /* Reverses the sizes, because GGUF lists the number of columns first. */
    for (size_t i = rank; i-- > 0;) {
        if (take(r, 8, "a dimension", &dim, err))
            return -1;
        t->dims[i] = (size_t)dim;
        if (!dim || __builtin_mul_overflow(t->n, t->dims[i], &t->n))
            return kvd_fail(err, "dimension %zu is %" PRIu64, rank - 1 - i, dim);
    }
    if (take_u32(r, "a tensor's type", &t->type, err) || take(r, 8, "an offset", &offset, err))
        return -1;
    t->offset = (size_t)offset;
    const tensor_type *type = find_type(t->type);
    if (!type)
        return kvd_fail(err, "type %" PRIu32 " is not known", t->type);
    if (t->dims[rank - 1] % type->block)
        return kvd_fail(err, "is %s, but its rows of %zu are no whole blocks of %u", type->name,
                        t->dims[rank - 1], type->block);
    if (__builtin_mul_overflow(t->n / type->block, (size_t)type->bytes, &t->bytes))
        return kvd_fail(err, "is too large: %zu elements", t->n);
    return 0;
}

static int compare_tensors(const void *a, const void *b)
{
    const tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int name_order(const void *name, const void *p)
{
    const tensor *const *t = p;
    return strcmp(name, (*t)->name);
}

static int take_tensors(reader *r, kvd_gguf *g, kvd_err *err)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        const char *name;
        size_t len;
        tensor *t = &g->tensors[i];
        if (take_text(r, "a tensor's name", &name, &len, err))
            return -1;
        if (!len || len >= sizeof t->name || memchr(name, 0, len))
            return kvd_fail(
                err,
                "tensor %zu has a name of %zu bytes, or with a zero byte: 1 to %zu are possible", i,
                len, sizeof t->name - 1);
        memcpy(t->name, name, len);
        if (take_shape(r, t, err))
            return kvd_in(err, "tensor '%s'", t->name);
        g->by_name[i] = t;
    }
    if (g->n_tensors)
        qsort(g->by_name, g->n_tensors, sizeof(*g->by_name), compare_tensors);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (compare_tensors(&g->by_name[i - 1], &g->by_name[i]) == 0)
            return kvd_fail(err, "tensor '%s' occurs twice", g->by_name[i]->name);
    return 0;
}

static size_t padding(size_t at, size_t alignment)
{
    return (alignment - at % alignment) % alignment;
}

static int place_tensors(const reader *r, kvd_gguf *g, kvd_err *err)
{
    int64_t alignment = ALIGNMENT;
    if (kvd_gguf_whole(g, "general.alignment", &alignment, err) < 0)
        return -1;
    if (alignment < 8 || alignment % 8 || alignment > ALIGNMENT_MAX)
        return kvd_fail(err, "'general.alignment' is %" PRId64 ", not a multiple of 8 up to %d",
                        alignment, ALIGNMENT_MAX);
    const size_t step = (size_t)alignment, head = (size_t)(r->at - r->start),
                 pad = padding(head, step);
    if (g->n_tensors && pad > left(r))
        return cut(r, "the padding before the tensors", err);
    const size_t available = g->n_tensors ? left(r) - pad : left(r);
    size_t at = 0;
    g->data = g->n_tensors ? r->at + pad : r->at;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const tensor *t = &g->tensors[i];
        at += padding(at, step); /* no overflow: `at` is at most the file's length */
        if (t->offset != at)
            return kvd_fail(err, "tensor '%s' is at %zu, the one before it ends at %zu", t->name,
                            t->offset, at);
        if (at > available || t->bytes > available - at)
            return kvd_fail(err, "tensor '%s' goes to byte %zu + %zu of the data, the file has %zu",
                            t->name, at, t->bytes, available);
        at += t->bytes;
    }
    /* The file may end after the last tensor, or after padding that follows it. */
    if (available != at && available - at != (g->n_tensors ? padding(at, step) : pad))
        return kvd_fail(err, "%zu bytes after the last tensor", available - at);
    return 0;
}

static int parse(kvd_gguf *g, const unsigned char *bytes, size_t len, kvd_err *err)
{
    /* smallest size in bytes of a key with its value, and of a tensor's description */
    enum { VALUE_BYTES = 13, TENSOR_BYTES = 33 };
    reader r = {bytes, bytes, bytes + len};
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_values = 0;
    if (len < 4 || memcmp(bytes, "GGUF", 4) != 0)
        return kvd_fail(err, "not a GGUF file");
    r.at += 4;
    if (take_u32(&r, "the version", &version, err))
        return -1;
    if (version && !(version & 0xffff))
        return kvd_fail(err, "a big-endian GGUF file, which is not supported");
    if (version < VERSION_MIN || version > VERSION_MAX)
        return kvd_fail(err, "GGUF version %" PRIu32 ", only %d to %d are supported", version,
                        VERSION_MIN, VERSION_MAX);
    if (take(&r, 8, "the number of tensors", &n_tensors, err) ||
        take(&r, 8, "the number of values", &n_values, err))
        return -1;
    if (n_tensors > MAX_COUNT || n_values > MAX_COUNT || n_values > left(&r) / VALUE_BYTES ||
        n_tensors > left(&r) / TENSOR_BYTES)
        return kvd_fail(err,
                        "%" PRIu64 " values and %" PRIu64
                        " tensors do not fit in %zu bytes, or are more than %d",
                        n_values, n_tensors, len, MAX_COUNT);
    g->n_values = (size_t)n_values;
    g->n_tensors = (size_t)n_tensors;
    g->values = calloc(g->n_values + 1, sizeof *g->values);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    g->by_name = calloc(g->n_tensors + 1, sizeof(*g->by_name));
    if (!g->values || !g->tensors || !g->by_name)
        return kvd_no_memory(err, "the list of a GGUF file",
                             g->n_values * sizeof *g->values + g->n_tensors * sizeof *g->tensors);
    if (take_values(&r, g, err) || take_tensors(&r, g, err))
        return -1;
    return place_tensors(&r, g, err);
}

static kvd_gguf *start(const char *name, kvd_err *err)
{
    kvd_gguf *g = calloc(1, sizeof *g);
    if (g)
        g->path = strdup(name);
    if (!g || !g->path) {
        kvd_no_memory(err, "a GGUF file", sizeof *g);
        kvd_gguf_close(g);
        return NULL;
    }
    return g;
}

static kvd_gguf *finish(kvd_gguf *g, const void *bytes, size_t len, kvd_err *err)
{
    if (parse(g, bytes, len, err) == 0)
        return g;
    kvd_in(err, "'%s'", g->path);
    kvd_gguf_close(g);
    return NULL;
}

kvd_gguf *kvd_gguf_parse(const char *name, const void *bytes, size_t len, kvd_err *err)
{
    kvd_gguf *g = start(name, err);
    return g ? finish(g, bytes, len, err) : NULL;
}

kvd_gguf *kvd_gguf_open(const char *path, kvd_err *err)
{
    kvd_gguf *g = start(path, err);
    if (!g)
        return NULL;
    if (kvd_filemap_load(&g->map, path, err)) {
        g->map = (kvd_filemap){0};
        kvd_gguf_close(g);
        return NULL;
    }
    return finish(g, g->map.bytes, g->map.len, err);
}

void kvd_gguf_close(kvd_gguf *g)
{
    if (!g)
        return;
    kvd_filemap_release(&g->map);
    free(g->values);
    free(g->tensors);
    free(g->by_name);
    free(g->path);
    free(g);
}

const char *kvd_gguf_path(const kvd_gguf *g)
{
    return g->path;
}

size_t kvd_gguf_count(const kvd_gguf *g)
{
    return g->n_tensors;
}

const char *kvd_gguf_name(const kvd_gguf *g, size_t i)
{
    return g->tensors[i].name;
}

size_t kvd_gguf_find(const kvd_gguf *g, const char *name)
{
    const tensor **const at =
        bsearch(name, g->by_name, g->n_tensors, sizeof(*g->by_name), name_order);
    return at ? (size_t)(*at - g->tensors) : g->n_tensors;
}

static bool find_packing(const char *type, kvd_packing *packing)
{
    for (int p = KVD_PLAIN + 1; p < KVD_RANDOM; p++)
        if (strcasecmp(kvd_block_layout_of((kvd_packing)p)->name, type) == 0) {
            *packing = (kvd_packing)p;
            return true;
        }
    return false;
}

int kvd_gguf_tensor(const kvd_gguf *g, size_t i, kvd_tensor *out, kvd_err *err)
{
    const tensor *t = &g->tensors[i];
    const char *type = find_type(t->type)->name;
    *out = (kvd_tensor){.name = t->name, .rank = t->rank, .n = t->n, .file = g->path};
    memcpy(out->dims, t->dims, sizeof t->dims);
    out->data = g->data + t->offset;
    if (strcmp(type, "F32") == 0)
        out->dtype = KVD_F32;
    else if (strcmp(type, "F16") == 0)
        out->dtype = KVD_F16;
    else if (strcmp(type, "BF16") == 0)
        out->dtype = KVD_BF16;
    else if (!find_packing(type, &out->packing))
        return kvd_fail(err,
                        "'%s': tensor '%s' is %s, only F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, "
                        "Q8_0, Q2_K to Q6_K, IQ4_NL and MXFP4 are supported",
                        g->path, t->name, type);
    return 0;
}
