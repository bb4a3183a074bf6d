#include "model/checkpoint/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char mark[] = ".experts.", blocks[] = "_blocks", scales[] = "_scales",
                  biases[] = "_bias", weight[] = ".weight", bias[] = ".bias";
enum { NAME = 160, CODES = 16 }; /* CODES: bytes of the codes of a block */

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

bool kvd_stacked_name(const char *stored, char *name, size_t size)
{
    const char *const at = strstr(stored, mark);
    if (!at)
        return false;
    const char *const part = at + strlen(mark), *const end = ends_with(part, blocks)   ? blocks
                                                             : ends_with(part, scales) ? scales
                                                             : ends_with(part, biases) ? biases
                                                                                       : "";
    const int n = snprintf(name, size, "%.*s%s0.%.*s%s", (int)(at - stored), stored, mark,
                           (int)(strlen(part) - strlen(end)), part, end == biases ? bias : weight);
    return n > 0 && (size_t)n < size;
}

/* Splits "x.experts.N.y.weight" into N and "x.experts.y". */
static bool split(const char *name, size_t *expert, bool *of_bias, char *stored)
{
    const char *const at = strstr(name, mark);
    char *rest;
    if (!at || at[strlen(mark)] < '0' || at[strlen(mark)] > '9')
        return false;
    *expert = strtoul(at + strlen(mark), &rest, 10);
    *of_bias = ends_with(name, bias);
    const char *const end = *of_bias ? bias : weight;
    if (*rest != '.' || !ends_with(rest, end))
        return false;
    const int n = snprintf(stored, NAME, "%.*s%.*s", (int)(at - name + (long)strlen(mark)), name,
                           (int)(strlen(rest) - 1 - strlen(end)), rest + 1);
    return n > 0 && n < NAME;
}

static int check_count(const char *stored, const kvd_tensor *t, int rank, size_t n_experts,
                       kvd_err *err)
{
    if (t->rank != rank)
        return kvd_fail(err, "'%s': tensor '%s' has %d dimensions, not %d", t->file, stored,
                        t->rank, rank);
    if (t->dims[0] != n_experts)
        return kvd_fail(err, "'%s': tensor '%s' has %zu experts, the configuration needs %zu",
                        t->file, stored, t->dims[0], n_experts);
    return 0;
}

/* Finds a tensor of bytes, and fails if it is there with another type. */
static int find_bytes(const kvd_shards *s, const char *name, kvd_tensor *out, kvd_err *err)
{
    kvd_tensor_spec spec;
    const void *data;
    size_t bytes;
    const char *file;
    if (kvd_shards_stored(s, name, &spec, &data, &bytes, &file))
        return 1;
    if (strcmp(spec.dtype, "U8") != 0)
        return kvd_fail(err, "'%s': tensor '%s' is %s, blocks of MXFP4 are stored as U8", file,
                        name, spec.dtype);
    *out =
        (kvd_tensor){.name = spec.name, .rank = spec.rank, .n = bytes, .data = data, .file = file};
    memcpy(out->dims, spec.dims, sizeof out->dims);
    return 0;
}

/* Finds the codes and scales of an expert's matrix. Returns 1 if they are not stored. */
static int find_mxfp4(const kvd_shards *s, const char *stored, size_t expert, size_t n_experts,
                      kvd_tensor *out, kvd_err *err)
{
    char name[2 * NAME];
    kvd_tensor exponents;
    (void)snprintf(name, sizeof name, "%s%s", stored, blocks);
    int status = find_bytes(s, name, out, err);
    if (status)
        return status;
    if (check_count(name, out, 4, n_experts, err))
        return -1;
    const size_t rows = out->dims[1], row_blocks = out->dims[2];
    if (out->dims[3] != CODES)
        return kvd_fail(err, "'%s': tensor '%s' has blocks of %zu bytes, MXFP4 has %d", out->file,
                        name, out->dims[3], CODES);
    (void)snprintf(name, sizeof name, "%s%s", stored, scales);
    status = find_bytes(s, name, &exponents, err);
    if (status > 0)
        return kvd_fail(err, "'%s': tensor '%s' is missing", out->file, name);
    if (status || check_count(name, &exponents, 3, n_experts, err))
        return -1;
    if (exponents.dims[1] != rows || exponents.dims[2] != row_blocks)
        return kvd_fail(err, "'%s': tensor '%s' has %zu x %zu scales, the blocks need %zu x %zu",
                        exponents.file, name, exponents.dims[1], exponents.dims[2], rows,
                        row_blocks);
    out->packing = KVD_MXFP4_APART;
    out->rank = 2;
    out->dims[0] = rows;
    out->dims[1] = 2 * CODES * row_blocks;
    out->n = rows * out->dims[1];
    out->data = (const unsigned char *)out->data + expert * rows * row_blocks * CODES;
    out->scales = (const unsigned char *)exponents.data + expert * rows * row_blocks;
    return 0;
}

int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err)
{
    char stored[NAME + sizeof biases];
    size_t expert;
    bool of_bias;
    if (!split(name, &expert, &of_bias, stored) || expert >= n_experts)
        return 1;
    if (of_bias)
        strcat(stored, biases);
    int status = kvd_shards_find(s, stored, out, err);
    if (status > 0 && !of_bias)
        return find_mxfp4(s, stored, expert, n_experts, out, err);
    if (status || check_count(stored, out, of_bias ? 2 : 3, n_experts, err))
        return status ? status : -1;
    if (kvd_tensor_take_slice(out, n_experts, expert, err))
        return -1;
    if (!of_bias) {
        const size_t in = out->dims[0];
        out->dims[0] = out->dims[1];
        out->dims[1] = in;
        out->order = KVD_ROWS_AS_COLUMNS;
    }
    return 0;
}
