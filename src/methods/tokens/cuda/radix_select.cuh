/* Finds the k largest of n 64-bit sort keys with one CTA, by a radix selection with 8 bits per
 * pass. */
#ifndef KVD_METHODS_TOKENS_CUDA_RADIX_SELECT_CUH
#define KVD_METHODS_TOKENS_CUDA_RADIX_SELECT_CUH

enum { KVD_SELECT_BINS = 256 };

static __device__ __forceinline__ void select_count(unsigned *bin, unsigned digit)
{
    const unsigned active = __activemask();
    int same;
    (void)__match_all_sync(active, digit, &same);
    if (!same)
        atomicAdd(bin + digit, 1u);
    else if ((int)threadIdx.x % 32 == __ffs((int)active) - 1)
        atomicAdd(bin + digit, (unsigned)__popc(active));
}

/* One pass of a radix selection: finds the 8-bit digit of the *k-th largest sort key. bin[d] is the
 * number of sort keys with digit d. Subtracts from *k the number of sort keys with larger digits.
 * The first warp must call it. */
static __device__ void select_digit(const unsigned *bin, int lane, unsigned *digit, unsigned *k,
                                    bool *all)
{
    unsigned mine = 0, above = 0;
    for (int i = 0; i < 8; i++)
        mine += bin[255 - 8 * lane - i];
    above = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, above, step);
        above += lane >= step ? other : 0;
    }
    above -= mine;
    const unsigned want = *k;
    __syncwarp();
    if (above < want && above + mine >= want)
        for (int i = 255 - 8 * lane;; i--) {
            if (above + bin[i] >= want) {
                *digit = (unsigned)i;
                *k = want - above;
                *all = bin[i] == want - above;
                break;
            }
            above += bin[i];
        }
}

/* Returns a number x such that, of n distinct sort keys, exactly the k largest are at least x. k
 * must be above 0 and below n. The lower 32 bits of every sort key must be below `bound`. All
 * threads must call it. */
template <int THREADS, typename KEY>
static __device__ unsigned long long select_key(const KEY &key, int n, int k, unsigned *bin,
                                                unsigned bound)
{
    __shared__ unsigned digit, left;
    __shared__ bool all;
    unsigned long long found = 0, known = 0;
    if (threadIdx.x == 0)
        left = (unsigned)k;
    for (int shift = 56; shift >= 0; shift -= 8) {
        known |= 255ull << shift;
        if (shift < 32 && (bound - 1) >> shift == 0 && shift > 0)
            /* All sort keys have zeros in the 8 bits from bit `shift` on, so there is nothing to
             * search. */
            continue;
        for (int i = (int)threadIdx.x; i < KVD_SELECT_BINS; i += THREADS)
            bin[i] = 0;
        __syncthreads();
        for (int t = (int)threadIdx.x; t < n; t += THREADS) {
            const unsigned long long x = key(t);
            if ((x & (known << 8)) == found)
                select_count(bin, (unsigned)(x >> shift) & 255u);
        }
        __syncthreads();
        if (threadIdx.x < 32)
            select_digit(bin, (int)threadIdx.x, &digit, &left, &all);
        __syncthreads();
        found |= (unsigned long long)digit << shift;
        if (all)
            break;
    }
    return found;
}

/* Returns a number x such that, of n distinct sort keys, exactly the k largest are at least x. The
 * lower 32 bits of every sort key must be below n. */
template <int THREADS, typename KEY>
static __device__ unsigned long long select_key(const KEY &key, int n, int k, unsigned *bin)
{
    return select_key<THREADS>(key, n, k, bin, (unsigned)n);
}

/* Returns a number x such that, of n distinct sort keys, exactly the k largest are at least x. x is
 * 0 if k >= n, and has all bits set if k <= 0. All threads must call it. */
template <int THREADS, typename KEY>
static __device__ unsigned long long select_least(const KEY &key, int n, int k)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    return k >= n ? 0 : k <= 0 ? ~0ull : select_key<THREADS>(key, n, k, bin);
}

/* Returns the number of threads before this one whose `stays` is true. *all gets the number in the
 * whole CTA. */
template <int THREADS> static __device__ int select_place(bool stays, int *all)
{
    __shared__ int part[THREADS / 32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const unsigned vote = __ballot_sync(0xffffffffu, stays);
    int before = __popc(vote & ((1u << lane) - 1)), sum = 0;
    if (lane == 0)
        part[warp] = __popc(vote);
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) {
        before += w < warp ? part[w] : 0;
        sum += part[w];
    }
    __syncthreads();
    *all = sum;
    return before;
}

/* Calls take(i, t) for every token t < n for which stays(t) is true, where i counts these tokens
 * from 0. Returns their number. All threads must call it. */
template <int THREADS, typename STAYS, typename TAKE>
static __device__ int select_each(int n, const STAYS &stays, const TAKE &take)
{
    int place = 0;
    for (int first = 0; first < n; first += THREADS) {
        const int t = first + (int)threadIdx.x;
        const bool is = t < n && stays(t);
        int all;
        const int i = place + select_place<THREADS>(is, &all);
        place += all;
        if (is)
            take(i, t);
    }
    return place;
}

/* Returns the sum of x over the threads before this one. *all gets the sum over all threads of the
 * CTA. */
template <int THREADS> static __device__ int sum_before(int x, int *all)
{
    __shared__ int part[THREADS / 32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int upto = x, before = 0, sum = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, upto, step);
        upto += lane >= step ? other : 0;
    }
    if (lane == 31)
        part[warp] = upto;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) {
        before += w < warp ? part[w] : 0;
        sum += part[w];
    }
    __syncthreads();
    *all = sum;
    return before + upto - x;
}

#endif
