#include "kernels/layout.h"

#include <math.h>
#include <string.h>

#include "common/half.h"

int kvd_attn_map_make(const kvd_attn_heads *heads, kvd_attn_map *map)
{
    const int n = heads->n_heads, n_kv = heads->n_kv_heads;
    memset(map, 0, sizeof *map);
    if (n < 1 || n > KVD_HEADS_MAX || n_kv < 1 || n_kv > n || n % n_kv ||
        heads->d_head < KVD_WIDTH_STEP || heads->d_head > KVD_WIDTH_MAX || heads->window < 0)
        return -1;
    map->window = heads->window;
    map->n_heads = n;
    map->n_kv_heads = n_kv;
    map->group = n / n_kv;
    map->scale = (float)(1 / sqrt((double)heads->d_head));
    for (int g = 0; g < n_kv; g++) {
        const int d_qk = heads->d_qk[g], d_v = heads->d_v[g];
        if (!kvd_width_fits(d_qk, KVD_WIDTH_MAX) || !kvd_width_fits(d_v, KVD_WIDTH_MAX))
            return -1;
        map->d_qk[g] = (int16_t)d_qk;
        map->d_v[g] = (int16_t)d_v;
        map->kv_offset[g] = map->page_elements;
        map->page_elements += KVD_PAGE_TOKENS * (d_qk + d_v);
        for (int h = g * map->group; h < (g + 1) * map->group; h++) {
            map->q_offset[h] = map->q_pitch;
            map->o_offset[h] = map->o_pitch;
            map->q_pitch += d_qk;
            map->o_pitch += d_v;
        }
    }
    return 0;
}

int kvd_attn_widest(const kvd_attn_map *map)
{
    int widest = 0;
    for (int g = 0; g < map->n_kv_heads; g++) {
        widest = map->d_qk[g] > widest ? map->d_qk[g] : widest;
        widest = map->d_v[g] > widest ? map->d_v[g] : widest;
    }
    return widest;
}

size_t kvd_blocked_rows(const kvd_attn_batch *batch, int32_t *q_start)
{
    size_t rows = 0;
    for (int b = 0; b < batch->batch; b++) {
        if (q_start)
            q_start[b] = (int32_t)rows;
        rows += ((size_t)batch->q_len[b] + 7) / 8 * 8;
    }
    return rows;
}

static size_t sum(const int32_t *x, int n)
{
    size_t s = 0;
    for (int i = 0; i < n; i++)
        s += (size_t)x[i];
    return s;
}

/* Rounds `rows` [n][d] to 16 bits and stores them in `to`, in 8 x 8 blocks. They begin at row
 * `first` of `to` and are padded with zero rows to a multiple of 8. */
static void block_rows(int dtype, const float *rows, size_t n, size_t d, size_t first, uint16_t *to)
{
    uint16_t line[KVD_WIDTH_MAX];
    for (size_t t = 0; t < (n + 7) / 8 * 8; t++) {
        if (t < n)
            kvd_from_f32((kvd_dtype)dtype, rows + t * d, line, d);
        else
            memset(line, 0, sizeof line);
        for (size_t i = 0; i < d; i += 8)
            memcpy(to + kvd_blocked_index(first + t, i, d), line + i, 8 * sizeof *line);
    }
}

void kvd_pack_q(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *q,
                uint16_t *q_blocked)
{
    const size_t n_q8 = kvd_blocked_rows(batch, NULL);
    for (int h = 0; h < map->n_heads; h++) {
        const size_t d = (size_t)map->d_qk[h / map->group];
        uint16_t *to = q_blocked + (size_t)map->q_offset[h] * n_q8;
        size_t first = 0;
        for (int b = 0; b < batch->batch; b++) {
            const size_t n = (size_t)batch->q_len[b];
            block_rows(dtype, q, n, d, first, to);
            q += n * d;
            first += (n + 7) / 8 * 8;
        }
    }
}

void kvd_pack_q_decode(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype,
                       const float *q, uint16_t *q_rows)
{
    for (int h = 0; h < map->n_heads; h++) {
        const size_t d = (size_t)map->d_qk[h / map->group];
        for (int b = 0; b < batch->batch; b++, q += d)
            kvd_from_f32((kvd_dtype)dtype, q,
                         q_rows + (size_t)b * (size_t)map->q_pitch + (size_t)map->q_offset[h], d);
    }
}

void kvd_pack_kv(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *k,
                 const float *v, const int32_t *page_table, int max_pages, uint16_t *pool)
{
    for (int g = 0; g < map->n_kv_heads; g++) {
        const size_t d[2] = {(size_t)map->d_qk[g], (size_t)map->d_v[g]};
        for (int b = 0; b < batch->batch; b++) {
            const size_t n = (size_t)batch->kv_len[b];
            for (size_t t = 0; t < n; t += KVD_PAGE_TOKENS) {
                const size_t rows = n - t < KVD_PAGE_TOKENS ? n - t : KVD_PAGE_TOKENS;
                const size_t page =
                    (size_t)page_table[(size_t)b * (size_t)max_pages + t / KVD_PAGE_TOKENS];
                uint16_t *to = pool + page * (size_t)map->page_elements + (size_t)map->kv_offset[g];
                block_rows(dtype, k + t * d[0], rows, d[0], 0, to);
                block_rows(dtype, v + t * d[1], rows, d[1], 0, to + KVD_PAGE_TOKENS * d[0]);
            }
            k += n * d[0];
            v += n * d[1];
        }
    }
}

void kvd_unpack_o(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, int decode,
                  const uint16_t *o_rows, float *o)
{
    const size_t pitch = (size_t)map->o_pitch, n_q = sum(batch->q_len, batch->batch);
    size_t done = 0, first = 0;
    for (int b = 0; b < batch->batch; b++) {
        const size_t n = (size_t)batch->q_len[b];
        for (int h = 0; h < map->n_heads; h++) {
            const size_t d = (size_t)map->d_v[h / map->group];
            for (size_t t = 0; t < n; t++)
                kvd_to_f32((kvd_dtype)dtype,
                           o_rows + (decode ? (size_t)b : first + t) * pitch +
                               (size_t)map->o_offset[h],
                           o + n_q * (size_t)map->o_offset[h] + (done + t) * d, d);
        }
        done += n;
        first += (n + 7) / 8 * 8;
    }
}
