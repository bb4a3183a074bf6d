/* Writes a model shape with random weights as a Hugging Face folder. */
#ifndef KVD_TESTS_WRITE_SHAPE_H
#define KVD_TESTS_WRITE_SHAPE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/err.h"
#include "common/half.h"
#include "model/checkpoint/family.h"
#include "model/checkpoint/shapes.h"

typedef struct {
    char name[KVD_PART_NAME];
    kvd_tensor tensor;
    size_t shard; /* index of the shard, from 0 */
} written_tensor;

typedef struct {
    written_tensor *list;
    size_t n, n_shards, bytes;
} written_shape;

/* Adds a weight (or bias) of the model to the list, unless it is already there or the model does
 * not have it. */
static inline int written_add(written_shape *w, const kvd_checkpoint *c, kvd_part part, bool bias,
                              int layer, int expert, kvd_err *err)
{
    kvd_place place;
    const kvd_config *config = kvd_checkpoint_config(c);
    if ((part == KVD_PART_HEAD && config->tied_head) ||
        !kvd_expert_place(config, part, bias, layer, expert, &place))
        return 0;
    for (size_t i = w->n; i > 0 && i + 2 * KVD_N_PARTS > w->n; i--)
        if (strcmp(w->list[i - 1].name, place.name) == 0)
            return 0;
    written_tensor *t = &w->list[w->n++];
    memcpy(t->name, place.name, sizeof t->name);
    return kvd_checkpoint_tensor(c, place.name, place.stored_rows, place.cols, &t->tensor, err);
}

static inline int written_list(written_shape *w, const kvd_checkpoint *c, kvd_dtype dtype,
                               size_t shard_bytes, kvd_err *err)
{
    const int layers = kvd_checkpoint_config(c)->n_layers,
              experts = kvd_checkpoint_config(c)->n_experts;
    const size_t room =
        2 * (KVD_N_PARTS + 3 * (size_t)experts) * ((size_t)layers + 1) * sizeof *w->list;
    int status = 0;
    w->list = malloc(room);
    if (!w->list)
        return kvd_no_memory(err, "the list of tensors", room);
    for (int bias = 0; bias < 2; bias++)
        for (int p = KVD_PART_EMBEDDING; p <= KVD_PART_PROJECT_IN && !status; p++)
            status = written_add(w, c, (kvd_part)p, bias, 0, 0, err);
    for (int l = 0; l < layers; l++) {
        for (int p = 0; p < 2 * KVD_N_LAYER_PARTS && !status; p++)
            status = written_add(w, c, (kvd_part)(p / 2), p % 2, l, 0, err);
        for (int e = 0; e < experts; e++)
            for (int p = 2 * KVD_N_PARTS; p < 2 * KVD_N_ALL_PARTS && !status; p++)
                status = written_add(w, c, (kvd_part)(p / 2), p % 2, l, e, err);
    }
    for (int p = 2 * KVD_PART_NORM_FINAL; p < 2 * KVD_N_PARTS && !status; p++)
        status = written_add(w, c, (kvd_part)(p / 2), p % 2, 0, 0, err);
    size_t filled = 0;
    for (size_t i = 0; i < w->n && !status; i++) {
        const size_t bytes = w->list[i].tensor.n * kvd_dtype_bytes(dtype);
        if (filled > 0 && filled + bytes > shard_bytes) {
            w->n_shards++;
            filled = 0;
        }
        w->list[i].shard = w->n_shards;
        filled += bytes;
        w->bytes += bytes;
    }
    w->n_shards++;
    return status;
}

static inline int written_data(const kvd_tensor *t, kvd_dtype dtype, FILE *f, const char *path,
                               kvd_err *err)
{
    enum { PIECE = 1 << 20, PIECES = 16 };
    const size_t width = kvd_dtype_bytes(dtype);
    float *x = malloc((size_t)PIECES * PIECE * sizeof *x);
    unsigned char *stored = malloc(PIECES * PIECE * width);
    int status =
        x && stored ? 0 : kvd_no_memory(err, "elements", PIECES * PIECE * (sizeof *x + width));
    for (size_t first = 0; first < t->n && !status; first += PIECES * PIECE) {
        const size_t n = t->n - first < PIECES * PIECE ? t->n - first : PIECES * PIECE;
#pragma omp parallel for schedule(dynamic)
        for (size_t i = 0; i < n; i += PIECE) {
            const size_t m = n - i < PIECE ? n - i : PIECE;
            kvd_tensor_read(t, first + i, m, x + i);
            kvd_from_f32(dtype, x + i, stored + i * width, m);
        }
        if (fwrite(stored, width, n, f) != n)
            status = kvd_fail_errno(err, "cannot write '%s'", path);
    }
    free(stored);
    free(x);
    return status;
}

static inline int written_header(const written_shape *w, size_t shard, kvd_dtype dtype, FILE *f)
{
    static const char *const dtypes[] = {[KVD_F32] = "F32", [KVD_F16] = "F16", [KVD_BF16] = "BF16"};
    char *header = NULL;
    size_t len = 0, at = 0;
    FILE *text = open_memstream(&header, &len);
    if (!text)
        return -1;
    (void)fprintf(text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < w->n; i++) {
        const kvd_tensor *t = &w->list[i].tensor;
        if (w->list[i].shard != shard)
            continue;
        const size_t end = at + t->n * kvd_dtype_bytes(dtype);
        (void)fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", w->list[i].name,
                      dtypes[dtype], t->dims[0]);
        if (t->rank > 1)
            (void)fprintf(text, ",%zu", t->dims[1]);
        (void)fprintf(text, "],\"data_offsets\":[%zu,%zu]}", at, end);
        at = end;
    }
    (void)fputc('}', text);
    for (long pos = ftell(text); pos % 8; pos++)
        (void)fputc(' ', text);
    int status = fclose(text) ? -1 : 0;
    const uint64_t stated = len;
    if (!status && (fwrite(&stated, sizeof stated, 1, f) != 1 || fwrite(header, 1, len, f) != len))
        status = -1;
    free(header);
    return status;
}

static inline int written_shard(const char *folder, const written_shape *w, size_t shard,
                                kvd_dtype dtype, kvd_err *err)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/model-%05zu-of-%05zu.safetensors", folder, shard + 1,
                   w->n_shards);
    FILE *f = fopen(path, "wb");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    int status =
        written_header(w, shard, dtype, f) ? kvd_fail_errno(err, "cannot write '%s'", path) : 0;
    for (size_t i = 0; i < w->n && !status; i++)
        if (w->list[i].shard == shard)
            status = written_data(&w->list[i].tensor, dtype, f, path, err);
    if (fclose(f) && !status)
        status = kvd_fail_errno(err, "cannot write '%s'", path);
    return status;
}

static inline int written_config(const char *folder, const char *json, kvd_err *err)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    const int bad = fprintf(f, "%s\n", json) < 0;
    return fclose(f) || bad ? kvd_fail_errno(err, "cannot write '%s'", path) : 0;
}

static inline int written_index(const char *folder, const written_shape *w, kvd_err *err)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *f = fopen(path, "w");
    if (!f)
        return kvd_fail_errno(err, "cannot write '%s'", path);
    (void)fprintf(f, "{\"metadata\": {\"total_size\": %zu}, \"weight_map\": {", w->bytes);
    for (size_t i = 0; i < w->n; i++)
        (void)fprintf(f, "%s\n\"%s\": \"model-%05zu-of-%05zu.safetensors\"", i ? "," : "",
                      w->list[i].name, w->list[i].shard + 1, w->n_shards);
    const int bad = fprintf(f, "\n}}\n") < 0;
    return fclose(f) || bad ? kvd_fail_errno(err, "cannot write '%s'", path) : 0;
}

static inline int written_folder(const char *folder, kvd_err *err)
{
    return mkdir(folder, 0777) && errno != EEXIST ? kvd_fail_errno(err, "cannot make '%s'", folder)
                                                  : 0;
}

/* Writes a model's folder. A file has at most shard_bytes bytes, or one larger tensor. */
static inline int write_shape(const char *folder, const kvd_shape *s, uint64_t seed,
                              kvd_dtype dtype, size_t shard_bytes, kvd_err *err)
{
    written_shape w = {0};
    kvd_checkpoint *c = kvd_checkpoint_of_shape(s, seed, err);
    if (!c)
        return -1;
    int status = written_folder(folder, err);
    if (!status)
        status = written_list(&w, c, dtype, shard_bytes, err);
    for (size_t i = 0; i < w.n_shards && !status; i++)
        status = written_shard(folder, &w, i, dtype, err);
    if (!status)
        status = written_config(folder, s->json, err) || written_index(folder, &w, err) ? -1 : 0;
    free(w.list);
    kvd_checkpoint_close(c);
    return status;
}

#endif
