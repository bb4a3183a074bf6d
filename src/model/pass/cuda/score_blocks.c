#include "model/pass/cuda/score_blocks.h"

/* Queries in a block, and sequences for which scratch is allocated. */
enum { ROWS = 256, SEQUENCES = 16 };
#define SCRATCH ((size_t)256 << 20)

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads)
{
    const size_t row = round_up(max_len ? max_len : 1, 8), most = SCRATCH / per_score;
    const size_t rows = smaller(row, ROWS) * SEQUENCES * (size_t)n_heads;
    const size_t n = row < most / rows ? row * rows : most;
    return round_up(n > row ? n : row, 64);
}

bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room)
{
    b->first += b->rows;
    if (b->first >= len)
        return false;
    /* A multiple of 8, because cuBLAS is faster with aligned matrices. */
    b->from = window && b->first + 1 > window ? (b->first + 1 - window) / 8 * 8 : 0;
    b->rows = smaller(len - b->first, ROWS);
    while (b->rows > 1 && b->rows * round_up(b->first + b->rows - b->from, 8) > room)
        b->rows = (b->rows + 1) / 2;
    b->keys = b->first + b->rows - b->from;
    b->ld = round_up(b->keys, 8);
    return true;
}

size_t kvd_score_units(const kvd_score_block *b, size_t room)
{
    return smaller(room / (b->rows * b->ld), KVD_SCORE_UNITS);
}
