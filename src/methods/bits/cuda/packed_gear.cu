/* Quantises blocks of tokens with method gear: quantised numbers, outliers, and a low-rank
 * approximation of the quantisation error. */
#include "common/cuda/launch.cuh"
#include "methods/bits/cuda/packed_code.cuh"
#include "methods/bits/cuda/packed_gear.cuh"

namespace
{

enum {
    AHEAD = 4,
    WARPS = 8,
    ROW_WARPS = 16,
    RANK = KVD_GEAR_RANK,
    D_MAX = KVD_WIDTH_NARROW,
    APART = 0x7fff
};

/* Numbers among which outliers are searched: K of one channel in a block of tokens, or V of one
 * token. */
struct line_of {
    const head_of &o;
    int side, line, from, to;
};

__device__ __forceinline__ uint16_t *at(const line_of &l, int place)
{
    return l.side ? number_at(l.o, 1, l.line, place) : number_at(l.o, 0, place, l.line);
}

/* Calls f(index, valid, element) for elements `from` to `to` - 1 of a key channel or of a token's
 * V. `valid` is false in lanes that have no element. */
template <class F>
__device__ __forceinline__ void for_places(const line_of &l, int from, int to, int lane, F f)
{
    for (int first = from / 32 * 32; first < to; first += 32 * AHEAD) {
        uint16_t x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = first + 32 * k + lane;
            x[k] = i >= from && i < to ? *at(l, i) : 0;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int i = first + 32 * k + lane;
            if (first + 32 * k < to)
                f(i, i >= from && i < to, x[k]);
        }
    }
}

/* Maps bf16 bit patterns to integers that have the same order as the bf16 numbers. -0 and 0 get the
 * same integer. */
__device__ __forceinline__ int order_of(uint16_t x)
{
    return x == 0x8000 ? 0x8000 : x & 0x8000 ? 0xffff - x : x | 0x8000;
}

/* Returns the histogram bin that contains the k-th smallest or, if `top` is true, the k-th largest
 * number. */
__device__ int bin_of(const int *histogram, int k, bool top, int lane, int &before)
{
    const int flip = top ? 255 : 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += histogram[(8 * lane + i) ^ flip];
    const int upto = kvd_sum_to_lane(sum);
    const int first = __ffs((int)__ballot_sync(~0u, upto >= k)) - 1;
    int bin = 8 * first;
    before = __shfl_sync(~0u, upto - sum, first);
    while (before + histogram[bin ^ flip] < k)
        before += histogram[bin++ ^ flip];
    return bin ^ flip;
}

/* Elements below `low` or above `high` are outliers. The first `lows` elements equal to `low` are
 * outliers, too. Elements equal to `high` are outliers, except the first `highs`. */
struct limits {
    int low, lows, high, highs;
};

__device__ limits find_limits(const line_of &l, int k, int *low, int *high, int lane)
{
    int below, above, b, c;
    for (int i = lane; i < 256; i += 32)
        low[i] = 0;
    __syncwarp();
    for_places(l, l.from, l.to, lane, [&](int, bool there, uint16_t x) {
        if (there)
            atomicAdd(low + (order_of(x) >> 8), 1);
    });
    __syncwarp();
    const int bottom = bin_of(low, k, false, lane, below), top = bin_of(low, k, true, lane, above);
    __syncwarp();
    for (int i = lane; i < 256; i += 32)
        low[i] = high[i] = 0;
    __syncwarp();
    for_places(l, l.from, l.to, lane, [&](int, bool there, uint16_t pattern) {
        const int x = order_of(pattern);
        if (there && x >> 8 == bottom)
            atomicAdd(low + (x & 255), 1);
        if (there && x >> 8 == top)
            atomicAdd(high + (x & 255), 1);
    });
    __syncwarp();
    const int bottom_low = bin_of(low, k - below, false, lane, b),
              top_low = bin_of(high, k - above, true, lane, c);
    const limits r = {bottom << 8 | bottom_low, k - below - b, top << 8 | top_low,
                      high[top_low] - (k - above - c)};
    __syncwarp();
    return r;
}

/* Moves the k smallest and the k largest elements of a key channel, or of a token's V, to the
 * page's list of outliers. Writes NaN in their place. Returns the mean of the other elements. */
__device__ float take_outliers(const line_of &l, int k, int *shared, int lane)
{
    const limits r = find_limits(l, k, shared, shared + 256, lane);
    const uint32_t before = (1u << lane) - 1;
    int lows = 0, highs = 0, n = 0;
    double sum = 0;
    for_places(l, l.from, l.to, lane, [&](int i, bool there, uint16_t pattern) {
        const int x = order_of(pattern);
        const uint32_t low = __ballot_sync(~0u, there && x == r.low),
                       high = __ballot_sync(~0u, there && x == r.high);
        const bool out = there && (x < r.low || x > r.high ||
                                   (x == r.low && lows + __popc(low & before) < r.lows) ||
                                   (x == r.high && highs + __popc(high & before) >= r.highs));
        const uint32_t outs = __ballot_sync(~0u, out);
        if (out) {
            const int e = n + __popc(outs & before);
            const uint32_t one = half_bits(bf16_of(pattern, 0)) | (uint32_t)(i - l.from) << 16;
            if (l.side)
                as_words(codes_of(l.o, l.line / KVD_PAGE_TOKENS) +
                         l.o.page.v_list)[l.line % KVD_PAGE_TOKENS * l.o.page.v_apart + e] = one;
            else
                *key_outlier(l.o, l.from, e, l.line) = one;
            *at(l, i) = APART;
        } else if (there) {
            sum += (double)bf16_of(pattern, 0);
        }
        lows += __popc(low);
        highs += __popc(high);
        n += __popc(outs);
    });
    return (float)(sum_of_warp(sum) / (double)(l.to - l.from - 2 * k));
}

__device__ __forceinline__ float number_or(uint16_t pattern, float middle)
{
    return pattern == APART ? middle : bf16_of(pattern, 0);
}

/* In decode, sets *number to 0 if it is the NaN that marks an outlier. In prefill, does nothing. */
__device__ __forceinline__ void clear_outlier(const kvd_packed_args &a, uint16_t *number)
{
    if (!a.q_len && *number == APART)
        *number = 0;
}

/* Quantises elements `from` to `to` - 1 of a key channel or of a token's V. They share one
 * scale. */
__device__ void code_group(const line_of &l, int from, int to, float middle, int lane)
{
    const int bits = l.o.a.gear.of.bits;
    const float top = (float)((1 << bits) - 1);
    float lo = INFINITY, hi = -INFINITY;
    for_places(l, from, to, lane, [&](int, bool there, uint16_t pattern) {
        const float x = number_or(pattern, middle);
        lo = there ? fminf(lo, x) : lo;
        hi = there ? fmaxf(hi, x) : hi;
    });
    lo = min_of_warp(lo);
    hi = -min_of_warp(-hi);
    const float step = as_half((hi - lo) / top), zero = as_half(lo);
    if (lane == 0)
        *(l.side ? value_scale(l.o, l.line, from) : key_scales(l.o, from) + l.line) =
            half_bits(step) | half_bits(zero) << 16;
    for_places(l, from, to, lane, [&](int i, bool there, uint16_t pattern) {
        const uint32_t code = there ? even_code(number_or(pattern, middle), zero, step, top) : 0;
        uint32_t *const planes =
            l.side ? planes_at(l.o, 1, l.line, i) : planes_at(l.o, 0, i - lane, l.line);
        const uint32_t mask = __ballot_sync(~0u, there);
        for (int j = 0; j < bits; j++) {
            const uint32_t plane = __ballot_sync(~0u, code >> j & 1);
            if (lane == j)
                planes[j] = (planes[j] & ~mask) | plane;
        }
        if (there && !l.o.a.gear.of.rank_later)
            clear_outlier(l.o.a, at(l, i));
    });
}

__device__ void code_line(const line_of &l, int *shared, int lane)
{
    const kvd_gear &s = l.o.a.gear.of;
    const int k = kvd_gear_apart(&s, l.to - l.from);
    const float middle = k ? take_outliers(l, k, shared, lane) : 0;
    __syncwarp();
    for (int i = l.from; i < l.to; i += s.group)
        code_group(l, i, min(i + s.group, l.to), middle, lane);
}

__global__ void __launch_bounds__(32 * WARPS)
    code_lines_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ int histogram[WARPS][512];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, z = (int)blockIdx.z,
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              workers = (int)gridDim.z * WARPS;
    const coded_span s = coded_now(a, b);
    const head_of o = make_head(a, b, g, s.prompt);
    const int d_qk = a.width[0][g], d_v = a.width[1][g];
    if (a.q_len && g == 0 && z == 0 && threadIdx.x == 0)
        a.prompt[a.slot[b]] = s.to;
    for (int task = z * WARPS + warp; s.from < s.to && task < d_qk + s.to - s.from;
         task += workers) {
        if (task < d_qk)
            code_line({o, 0, task, s.from, s.to}, histogram[warp], lane);
        else
            code_line({o, 1, s.from + task - d_qk, 0, d_v}, histogram[warp], lane);
        __syncwarp();
    }
    if (a.q_len)
        keep_newest(a, b, g, s.to, s.m, z * WARPS + warp, workers, lane);
}

struct shared_factors {
    float right[D_MAX][RANK], sums[D_MAX][RANK];
    double of_warp[ROW_WARPS][RANK][RANK], gram[RANK][RANK], turn[RANK][RANK];
};

/* Makes the first r columns of x [d] orthonormal. Called by one warp. */
__device__ void orthonormalise(float (*x)[RANK], int d, int r, int lane)
{
    for (int c = 0; c < r; c++) {
        for (int p = 0; p < c; p++) {
            double dot = 0;
            for (int i = lane; i < d; i += 32)
                dot += (double)x[i][c] * (double)x[i][p];
            dot = sum_of_warp(dot);
            for (int i = lane; i < d; i += 32)
                x[i][c] -= (float)dot * x[i][p];
        }
        double square = 0;
        for (int i = lane; i < d; i += 32)
            square += (double)x[i][c] * (double)x[i][c];
        square = sum_of_warp(square);
        const float scale = square > 1e-30 ? (float)(1 / sqrt(square)) : 0;
        for (int i = lane; i < d; i += 32)
            x[i][c] *= scale;
    }
}

/* Computes s.turn such that the columns of X s.turn are orthonormal, for a matrix X with X^T X =
 * s.gram. */
__device__ void orthonormal_turn(shared_factors &s, int r)
{
    for (int c = 0; c < r; c++) {
        double dot[RANK], square = 0;
        for (int p = 0; p < c; p++) {
            dot[p] = 0;
            for (int k = 0; k < r; k++)
                dot[p] += s.turn[k][p] * s.gram[k][c];
        }
        for (int k = 0; k < r; k++) {
            double x = k == c;
            for (int p = 0; p < c; p++)
                x -= dot[p] * s.turn[k][p];
            s.turn[k][c] = x;
        }
        for (int k = 0; k < r; k++)
            for (int q = 0; q < r; q++)
                square += s.turn[k][c] * s.gram[k][q] * s.turn[q][c];
        const double scale = square > 1e-30 && square > 1e-12 * s.gram[c][c] ? 1 / sqrt(square) : 0;
        for (int k = 0; k < r; k++)
            s.turn[k][c] *= scale;
    }
}

/* Addresses of K or V of one token: bf16 numbers, quantised numbers and scales. */
struct row_of {
    const uint16_t *number;
    const uint32_t *planes, *scale;
};

__device__ __forceinline__ row_of make_row(const head_of &o, int side, int t)
{
    return {number_at(o, side, t, 0), planes_at(o, side, t, 0),
            side ? value_scale(o, t, 0) : key_scales(o, t)};
}

/* Returns the quantisation error of channel i of token t. The error of outliers is 0. */
__device__ __forceinline__ float error_of(const head_of &o, const row_of &r, int side, int t, int i)
{
    const int bits = o.a.gear.of.bits;
    const uint16_t pattern = r.number[i / 8 * 64 + i % 8];
    if (pattern == APART)
        return 0;
    const uint32_t code =
        code_in(r.planes + (side ? i / 32 : i * 2) * bits, bits, side ? i % 32 : t % 32);
    return bf16_of(pattern, 0) - decoded(r.scale[side ? i / o.a.gear.of.group : i], (float)code);
}

/* Returns x[at]. Reads x with constant indices only, so that x stays in registers. */
__device__ __forceinline__ float element_of(const float (&x)[RANK], int at)
{
    float y = 0;
#pragma unroll
    for (int c = 0; c < RANK; c++)
        y = c == at ? x[c] : y;
    return y;
}

/* Sets e to the quantisation error of token t, and x to the product of e and the right low-rank
 * factor s.right. */
__device__ __forceinline__ void multiply_row(const shared_factors &s, const head_of &o, int side,
                                             int t, float (&e)[D_MAX / 32], float (&x)[RANK],
                                             int lane)
{
    const row_of row = make_row(o, side, t);
    const int d = o.a.width[side][o.g];
#pragma unroll
    for (int q = 0; q < D_MAX / 32; q++) {
        const int i = 32 * q + lane;
        e[q] = i < d ? error_of(o, row, side, t, i) : 0;
#pragma unroll
        for (int c = 0; c < RANK; c++)
            x[c] = fmaf(e[q], s.right[i][c], q ? x[c] : 0);
    }
#pragma unroll
    for (int c = 0; c < RANK; c++)
#pragma unroll
        for (int i = 1; i < 32; i *= 2)
            x[c] += __shfl_xor_sync(~0u, x[c], i);
}

/* Tokens that warp w of a CTA handles: `from` + w, `from` + w + `every`, `from` + w + 2 * `every`
 * and so on, all below `to`. */
struct rows_of {
    int side, from, to, every;
};

/* Stores the rows of the left low-rank factor, which are quantisation errors of tokens times
 * s.right. */
__device__ void put_left(const shared_factors &s, const head_of &o, const rows_of &rows,
                         int columns)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, side = rows.side;
    for (int t = rows.from + warp; t < rows.to; t += rows.every) {
        float e[D_MAX / 32], x[RANK];
        multiply_row(s, o, side, t, e, x, lane);
        uint16_t *const row =
            reinterpret_cast<uint16_t *>(codes_of(o, t / KVD_PAGE_TOKENS) + o.page.left[side]) +
            t % KVD_PAGE_TOKENS * o.page.columns_left;
        if (lane < columns)
            row[lane] = (uint16_t)half_bits(element_of(x, lane));
        for (int i = lane; i < o.a.width[side][o.g]; i += 32)
            clear_outlier(o.a, number_at(o, side, t, i));
    }
}

/* Computes s.sums = E^T E R and s.gram = (E R)^T E R, where R is s.right. Rows of E are the
 * quantisation errors of the tokens in `rows`. */
__device__ void pass_over_rows(shared_factors &s, const head_of &o, const rows_of &rows)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float sums[D_MAX / 32][RANK] = {};
    double gram[RANK * RANK / 32] = {};
    for (int t = rows.from + warp; t < rows.to; t += rows.every) {
        float e[D_MAX / 32], x[RANK];
        multiply_row(s, o, rows.side, t, e, x, lane);
#pragma unroll
        for (int q = 0; q < D_MAX / 32; q++)
#pragma unroll
            for (int c = 0; c < RANK; c++)
                sums[q][c] = fmaf(e[q], x[c], sums[q][c]);
#pragma unroll
        for (int q = 0; q < RANK * RANK / 32; q++)
            gram[q] += (double)element_of(x, (32 * q + lane) / RANK) *
                       (double)element_of(x, (32 * q + lane) % RANK);
    }
#pragma unroll
    for (int q = 0; q < RANK * RANK / 32; q++)
        s.of_warp[warp][(32 * q + lane) / RANK][(32 * q + lane) % RANK] = gram[q];
    for (int w = 0; w < ROW_WARPS; w++) {
        if (w == warp)
#pragma unroll
            for (int q = 0; q < D_MAX / 32; q++)
#pragma unroll
                for (int c = 0; c < RANK; c++)
                    s.sums[32 * q + lane][c] = (w ? s.sums[32 * q + lane][c] : 0) + sums[q][c];
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < RANK * RANK; i += 32 * ROW_WARPS) {
        double sum = 0;
        for (int w = 0; w < ROW_WARPS; w++)
            sum += s.of_warp[w][i / RANK][i % RANK];
        s.gram[i / RANK][i % RANK] = sum;
    }
    __syncthreads();
}

/* Returns element (i, c) of the matrix product of x and s.turn. */
__device__ __forceinline__ float turned(const shared_factors &s, const float (*x)[RANK], int i,
                                        int c, int r)
{
    double sum = 0;
    for (int k = 0; k < r; k++)
        sum += (double)x[i][k] * s.turn[k][c];
    return c < r ? (float)sum : 0;
}

__device__ void start(shared_factors &s, int d, int r)
{
    for (int i = (int)threadIdx.x; i < D_MAX * RANK; i += 32 * ROW_WARPS) {
        const int dim = i / RANK, c = i % RANK;
        s.right[dim][c] = dim < d && c < r ? (float)cos((double)dim * (double)(c + 1) + 0.5) : 0;
    }
    __syncthreads();
}

__device__ void turn_right(shared_factors &s, const float (*x)[RANK], int d, int r)
{
    float y[D_MAX * RANK / (32 * ROW_WARPS)];
    for (int k = 0; k < D_MAX * RANK / (32 * ROW_WARPS); k++) {
        const int i = k * 32 * ROW_WARPS + (int)threadIdx.x;
        y[k] = i / RANK < d ? turned(s, x, i / RANK, i % RANK, r) : 0;
    }
    __syncthreads();
    for (int k = 0; k < D_MAX * RANK / (32 * ROW_WARPS); k++)
        (&s.right[0][0])[k * 32 * ROW_WARPS + (int)threadIdx.x] = y[k];
    __syncthreads();
}

__device__ void put_right(const shared_factors &s, const head_of &o, int side, int from, int r,
                          int columns)
{
    uint16_t *const right = right_factor(o, side, from);
    for (int i = (int)threadIdx.x; i < o.a.width[side][o.g] * columns; i += 32 * ROW_WARPS)
        right[i] = (uint16_t)half_bits(turned(s, s.sums, i / columns, i % columns, r));
}

/* Global memory in which the CTAs of a KV head exchange partial sums of matrix products. Two areas
 * are used in turn. */
struct exchange {
    float *right, *part;
    int n;
};

__device__ __forceinline__ exchange exchange_of(const kvd_packed_args &a, int b, int g, int side,
                                                int parts, int pass)
{
    float *const at =
        a.gear.partial + (size_t)(((b * a.map.n_kv_heads + g) * 2 + side) * 2 + pass % 2) *
                             (size_t)(parts * KVD_GEAR_PART + D_MAX * RANK);
    return {at, at + D_MAX * RANK, parts};
}

__device__ void store(const shared_factors &s, const exchange &x, int part)
{
    float *const to = x.part + part * KVD_GEAR_PART, *const sums = to + 2 * RANK * RANK;
    for (int i = (int)threadIdx.x; i < RANK * RANK; i += 32 * ROW_WARPS)
        reinterpret_cast<double *>(to)[i] = (&s.gram[0][0])[i];
    for (int i = (int)threadIdx.x; i < D_MAX * RANK; i += 32 * ROW_WARPS) {
        sums[i] = (&s.sums[0][0])[i];
        if (part == 0)
            x.right[i] = (&s.right[0][0])[i];
    }
}

__device__ void load(shared_factors &s, const exchange &x)
{
    for (int i = (int)threadIdx.x; i < D_MAX * RANK; i += 32 * ROW_WARPS) {
        float sum = 0;
        for (int p = 0; p < x.n; p++)
            sum += x.part[p * KVD_GEAR_PART + 2 * RANK * RANK + i];
        (&s.sums[0][0])[i] = sum;
        (&s.right[0][0])[i] = x.right[i];
    }
    for (int i = (int)threadIdx.x; i < RANK * RANK; i += 32 * ROW_WARPS) {
        double sum = 0;
        for (int p = 0; p < x.n; p++)
            sum += reinterpret_cast<const double *>(x.part + p * KVD_GEAR_PART)[i];
        (&s.gram[0][0])[i] = sum;
    }
    __syncthreads();
}

/* Runs steps first .. last of the power method for K or V of one KV head. */
__global__ void __launch_bounds__(32 * ROW_WARPS)
    low_rank_kernel(const __grid_constant__ kvd_packed_args a, int first, int last)
{
    __shared__ shared_factors s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, side = (int)blockIdx.z % 2,
              part = (int)blockIdx.z / 2, parts = (int)gridDim.z / 2, d = a.width[side][g];
    const coded_span now = coded_now(a, b);
    const bool prompt = a.q_len != NULL;
    const int r = kvd_gear_rank(&a.gear.of, now.to - now.from, d, prompt);
    if (now.from >= now.to || r < 1)
        return;
    const head_of o = make_head(a, b, g, now.prompt);
    const rows_of rows = {side, now.from + part * ROW_WARPS, now.to, parts * ROW_WARPS};
    const int columns = prompt ? o.page.columns : o.page.columns_later;
    for (int pass = first; pass <= last; pass++) {
        if (pass == 0) {
            start(s, d, r);
        } else {
            if (pass == first)
                load(s, exchange_of(a, b, g, side, parts, pass - 1));
            if (threadIdx.x == 0)
                orthonormal_turn(s, r);
            __syncthreads();
            if (pass == a.gear.of.iterations) {
                if (part == 0)
                    put_right(s, o, side, now.from, r, columns);
                turn_right(s, s.right, d, r);
                put_left(s, o, rows, columns);
                return;
            }
            turn_right(s, s.sums, d, r);
        }
        if (threadIdx.x < 32)
            orthonormalise(s.right, d, r, (int)threadIdx.x);
        __syncthreads();
        pass_over_rows(s, o, rows);
    }
    store(s, exchange_of(a, b, g, side, parts, last), part);
}

int parts_of(const kvd_packed_args *a)
{
    const size_t heads = (size_t)a->n * (size_t)a->map.n_kv_heads * 2,
                 room = a->gear.partial_room / heads;
    const int wanted = a->q_len ? min(a->pages_side_by_side / 8, 16) : 1,
              fit = (int)(room / (2 * KVD_GEAR_PART)) - 1;
    return max(min(wanted, fit), 1);
}

void launch_low_rank(const kvd_packed_args *a, cudaStream_t stream)
{
    const int parts = parts_of(a), passes = a->gear.of.iterations + 1;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n, 2 * (unsigned)parts);
    if (parts == 1)
        low_rank_kernel<<<grid, 32 * ROW_WARPS, 0, stream>>>(*a, 0, passes - 1);
    for (int pass = 0; parts > 1 && pass < passes; pass++)
        low_rank_kernel<<<grid, 32 * ROW_WARPS, 0, stream>>>(*a, pass, pass);
}

} // namespace

cudaError_t kvd_packed_code_gear(const kvd_packed_args *a, cudaStream_t stream)
{
    code_lines_kernel<<<grid_of(a), 32 * WARPS, 0, stream>>>(*a);
    if (a->q_len ? a->gear.of.rank : a->gear.of.rank_later)
        launch_low_rank(a, stream);
    return cudaGetLastError();
}
